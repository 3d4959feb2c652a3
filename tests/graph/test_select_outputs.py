"""Guards against: rows dropped before every later token has seen their keys, or kept where nobody asked for them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from nybble.graph.graph import Buffer, Graph
from nybble.graph.ops import Linear, SelectOutputs
from nybble.graph.passes.lower import lower
from nybble.graph.passes.merge_linears import merge_linears
from nybble.graph.passes.quantise_activations import Rounding
from nybble.graph.passes.select_outputs import select_outputs
from nybble.graph.reference import ReferenceCache, run
from nybble.models.build import build_graph
from tests.models.tiny import TinyModel, tiny_checkpoint

from .small import assert_same, embedded, random_graphs, tensor


@settings(max_examples=80)
@given(random_graphs())
def test_random_graphs_compute_the_same(graph: Graph) -> None:
    assert_same(graph, select_outputs(graph))
    assert_same(graph, select_outputs(merge_linears(graph)))  # views on both sides of the line


def test_a_decoder_selects_behind_its_last_attention() -> None:
    graph = select_outputs(build_graph(tiny_checkpoint(TinyModel(layers=2))))
    selected = [op.input for op in graph.ops if isinstance(op, SelectOutputs)]
    assert selected == ["layer1.attention", "layer0.feed_forward_residual"]
    for name, buffer in graph.buffers.items():
        late = (
            "layer1.attention_",
            "layer1.output",
            "layer1.gate",
            "layer1.up",
            "layer1.act",
            "layer1.down",
            "layer1.feed",
        )
        expected = (name.startswith(late) and name != "layer1.attention_norm") or name.endswith(".selected")
        assert buffer.per_output == (expected or name in ("output_norm", "logits")), name


def test_no_rows_asked_for_still_fills_the_cache() -> None:
    plain = build_graph(tiny_checkpoint(TinyModel()))
    quantised = lower(plain, lambda linear: Rounding(24))
    assert run(quantised, [1, 2, 3], ReferenceCache(quantised), []).shape == (0, 300)
    graph = select_outputs(plain)
    cache = ReferenceCache(graph)
    assert run(graph, [1, 2, 3], cache, []).shape == (0, 300)
    expected = run(plain, [1, 2, 3, 4], ReferenceCache(plain), [3])
    np.testing.assert_allclose(run(graph, [4], cache), expected, rtol=1e-9, atol=1e-9)


def test_logits_written_by_the_last_op_that_needs_every_token() -> None:
    graph = select_outputs(embedded(8, widths={}, logits="x"))
    assert graph.logits == "x.selected" and graph.buffers["x.selected"] == Buffer(8, per_output=True)
    assert_same(embedded(8, widths={}, logits="x"), graph)


def test_a_second_time_changes_nothing() -> None:
    weight = tensor("w", np.eye(8))
    graph = select_outputs(embedded(8, Linear("head", "x", ("w",), "logits"), widths={"logits": 8}, tensors=[weight]))
    assert select_outputs(graph) is graph
