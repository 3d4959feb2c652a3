"""Guards against: q and k rows left in the file's interleaved order, or permuted where the file does not ask for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nybble.formats.gguf import open_gguf
from nybble.models.build import build_graph
from nybble.quant.blocks import dequantise
from nybble.quant.storage import StorageType

from .tiny import TinyModel, random_weights, tiny_checkpoint, tiny_gguf

PROJECTIONS = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o"}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_rows_come_back_in_the_order_of_training(architecture: str) -> None:
    model = TinyModel(architecture=architecture, biases="qkvo")
    trained = random_weights(model)
    graph = build_graph(tiny_checkpoint(model))
    for part, short in PROJECTIONS.items():
        for kind in ("weight", "bias"):
            found = dequantise(graph.tensors[f"blk.1.{part}.{kind}"])
            np.testing.assert_array_equal(found, trained[f"model.layers.1.self_attn.{short}_proj.{kind}"])


def test_quantised_rows_move_as_whole_blocks(tmp_path: Path) -> None:
    """The same rows, only in another order: nothing is decoded or rounded again."""
    checkpoint = open_gguf(tiny_gguf(tmp_path / "tiny.gguf", storage="Q4_0"))
    graph = build_graph(checkpoint)
    name = "blk.0.attn_q.weight"
    stored, used = checkpoint.tensors[name].rows, graph.tensors[name].rows
    head = [*range(0, 16, 2), *range(1, 16, 2)]
    np.testing.assert_array_equal(used, stored[[16 * at + row for at in range(4) for row in head]])


@pytest.mark.parametrize("storage", ["F16", "BF16"])
def test_biases_of_two_bytes_move_as_elements(storage: str) -> None:
    """Guards against reordering bytes instead of elements."""
    model = TinyModel(biases="q")
    checkpoint = tiny_checkpoint(model)
    halves = np.arange(64, dtype="<u2")
    name = "blk.0.attn_q.bias"
    bias = replace(checkpoint.tensors[name], storage=StorageType[storage], rows=halves.reshape(1, -1).view(np.uint8))
    graph = build_graph(replace(checkpoint, tensors={**checkpoint.tensors, name: bias}))
    used = graph.tensors[name].rows.reshape(-1).view("<u2")
    assert used[:16].tolist() == [*range(0, 16, 2), *range(1, 16, 2)]
    assert sorted(used.tolist()) == list(range(64))
