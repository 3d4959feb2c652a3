"""Guards against: passes that are right one by one and wrong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.formats.gguf import open_gguf
from nybble.graph.graph import Graph
from nybble.graph.passes.lower import lower
from nybble.graph.passes.quantise_activations import Rounding, quantise_activations
from nybble.graph.reference import ReferenceCache, ReferenceWeights, run
from nybble.models.build import build_graph
from tests.models.tiny import TinyModel, tiny_checkpoint, tiny_gguf

from .small import STEPS, assert_same, labels, logits_of, random_graphs

LAYER = ["RMSNorm", "Linear", "RotateAppend", "Attention", "Linear", "RMSNorm", "Linear", "SwiGLU", "Linear"]
LAST = [*LAYER[:4], "SelectOutputs", "SelectOutputs", *LAYER[4:]]
MODELS = {
    "llama": TinyModel(biases="o"),
    "qwen2": TinyModel(architecture="qwen2", biases="qkv", tied=True),
    "qwen3": TinyModel(architecture="qwen3", head_dim=32),
}


@settings(max_examples=60)
@given(random_graphs())
def test_random_graphs_compute_the_same(graph: Graph) -> None:
    assert_same(graph, lower(graph, lambda linear: None))


@settings(max_examples=60)
@given(random_graphs(storages=("F32", "F32", "Q8_0", "Q5_0")), st.sampled_from([8, 16, 32]))
def test_random_graphs_with_quantised_activations(graph: Graph, block: int) -> None:
    """Where every linear has the same block, quantising before the other passes or behind them is the same."""
    plain = logits_of(quantise_activations(graph, lambda linear: Rounding(block)), STEPS)
    for expected, found in zip(plain, logits_of(lower(graph, lambda linear: Rounding(block)), STEPS), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_a_layer_is_nine_ops(model: TinyModel) -> None:
    graph = build_graph(tiny_checkpoint(model))
    assert labels(lower(graph, lambda linear: None)) == ["Embed", *LAYER, *LAST, "RMSNorm", "Linear"]
    assert_same(graph, lower(graph, lambda linear: None))


def test_quantised_activations_cost_one_op_a_layer() -> None:
    """Behind the attention; norms and activations write codes themselves."""
    graph = lower(build_graph(tiny_checkpoint(TinyModel())), lambda linear: Rounding(16))
    layer, last = [*LAYER[:4], "Quantise", *LAYER[4:]], [*LAST[:6], "Quantise", *LAST[6:]]
    assert labels(graph) == ["Embed", *layer, *last, "RMSNorm", "Linear"]


@pytest.mark.parametrize("storage", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_every_storage_type_survives(storage: str, tmp_path: Path) -> None:
    shape = {"hidden": 256, "feed_forward": 256, "heads": 4, "head_dim": 64, "layers": 1}
    storages = {"attn_v": "Q6_K", "token_embd": "Q8_0"}
    path = tiny_gguf(tmp_path / "tiny.gguf", storage=storage, storages=storages, **shape)
    graph = build_graph(open_gguf(path))
    lowered = lower(graph, lambda linear: None)
    weights, tokens = ReferenceWeights(), [1, 2, 3]
    expected = run(graph, tokens, ReferenceCache(graph, np.float64, weights))
    found = run(lowered, tokens, ReferenceCache(lowered, np.float64, weights))
    assert np.isfinite(expected).all() and np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())
