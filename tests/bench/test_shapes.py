"""Published shapes: the sizes their authors published, and graphs that can be built of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nybble.bench.cases import Case
from nybble.bench.job import RandomModel, WeightFormat
from nybble.bench.processes import run_worker
from nybble.bench.random_model import check_random_model, metadata, random_checkpoint, random_tensors
from nybble.bench.shapes import SHAPES, Shape
from nybble.errors import InvalidParameter
from nybble.formats.checkpoint import Checkpoint
from nybble.models.build import build_graph
from nybble.quant.blocks import dequantise
from nybble.quant.storage import BlockStorage, Storage, StorageType
from tests.bench.workers import job

# Parameters in millions, as the models' cards or their weight files have them; tied matrices count once.
PARAMETERS = {
    "smollm2-135m": 134.5,
    "smollm2-360m": 361.8,
    "smollm2-1.7b": 1711.4,
    "tinyllama-1.1b": 1100.0,
    "llama-3.2-1b": 1235.8,
    "llama-3.2-3b": 3212.7,
    "qwen2.5-0.5b": 494.0,
    "qwen2.5-1.5b": 1543.7,
    "qwen2.5-3b": 3085.9,
    "qwen3-0.6b": 596.0,
    "qwen3-1.7b": 1720.6,
    "qwen3-4b": 4022.5,
}
FORMATS: list[Storage] = [
    *(BlockStorage(bits, block, offsets) for bits in (4, 8) for block in (16, 128) for offsets in (False, True)),
    StorageType.Q4_0,
    StorageType.Q4_1,
    StorageType.Q8_0,
]


def parameters(shape: Shape) -> int:
    """By the book, not by the code under test."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = shape.hidden * (2 * query + 2 * key)
    extra = {"llama": 0, "qwen2": query + 2 * key, "qwen3": 2 * shape.head_dim}[shape.architecture]
    layer = attention + extra + 3 * shape.hidden * shape.feed_forward + 2 * shape.hidden
    return shape.layers * layer + shape.hidden + shape.vocabulary * shape.hidden * (1 if shape.tied else 2)


def test_all_shapes_are_published() -> None:
    assert set(SHAPES) == set(PARAMETERS)


@pytest.mark.parametrize("name", SHAPES)
def test_parameters(name: str) -> None:
    """Guards against a mistyped number, which would make every speed of that shape wrong."""
    assert parameters(SHAPES[name]) / 1e6 == pytest.approx(PARAMETERS[name], abs=0.06)


@pytest.mark.parametrize("name", SHAPES)
def test_graphs(name: str) -> None:
    """A tenth of the layers and a small vocabulary, for speed; all other sizes as they are."""
    shape = replace(SHAPES[name], layers=2, vocabulary=64)
    tensors = random_tensors(shape, BlockStorage(4, 32, False), name)
    graph = build_graph(Checkpoint(Path(name), metadata(shape), tensors, 0))
    assert (graph.layers, graph.vocabulary, graph.head_dim) == (2, 64, shape.head_dim)
    assert sum(tensor.elements for tensor in graph.tensors.values()) == parameters(shape)


@pytest.mark.parametrize("storage", FORMATS, ids=lambda storage: storage.name)
def test_weights_are_of_the_right_size(storage: Storage) -> None:
    """Guards against random bytes that are NaN or so large that a layer overflows."""
    shape = Shape("llama", 1, 256, 4, 2, 64, 512, 100, 64, True)
    for tensor in random_tensors(shape, storage, "random").values():
        weights = dequantise(tensor)
        assert np.isfinite(weights).all()
        if len(tensor.shape) == 2:
            assert 0.2 < weights.std() * tensor.shape[1] ** 0.5 < 2
            assert abs(weights.mean()) < weights.std() / 2


def test_matrices_of_one_shape_share_memory() -> None:
    """Guards against taking a model's size twice: once as random bytes, once packed."""
    tensors = random_checkpoint(RandomModel("smollm2-135m", WeightFormat(4, 32))).tensors.values()
    distinct = {id(tensor.rows): tensor.stored_bytes for tensor in tensors}
    assert sum(distinct.values()) < 0.25 * sum(tensor.stored_bytes for tensor in tensors)


def test_what_does_not_exist() -> None:
    with pytest.raises(InvalidParameter, match=r"no shape 'gpt'; there are smollm2-135m, "):
        check_random_model(RandomModel("gpt", WeightFormat(4, 32)))
    for bits, block in ((3, 32), (4, 48), (4, 0), (16, 32)):
        with pytest.raises(InvalidParameter, match="blocks of 16, 32"):
            check_random_model(RandomModel("smollm2-135m", WeightFormat(bits, block)))


def test_measured_for_real() -> None:
    outcome = run_worker(
        job("", Case(0, 1), random=RandomModel("smollm2-135m", WeightFormat(4, 128, True)), repeats=1),
        None,
        lambda: None,
    )
    assert outcome.measured[0].seconds[0] > 0
    assert outcome.facts["model_type"] == "llama W4B128A"
    assert outcome.facts["parameters"] == parameters(SHAPES["smollm2-135m"])
    assert 4.2 < outcome.facts["bits_per_weight"] < 4.8
