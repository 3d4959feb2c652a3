"""Guards against: merged linears whose rows or biases are stacked in another order than their views read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from nybble.graph.graph import Buffer, Graph
from nybble.graph.ops import Add, Linear
from nybble.graph.passes.merge_linears import merge_linears, same_packing

from .small import assert_same, embedded, labels, random_graphs, tensor

RANDOM = np.random.default_rng(3)
W = [tensor(f"w{at}", RANDOM.normal(size=(width, 32))) for at, width in enumerate((8, 4, 4))]
B = [tensor(f"b{at}", RANDOM.normal(size=width)) for at, width in enumerate((8, 4, 4))]
PARTS = ("query", "key", "value")


def three(biases: tuple[int, ...] = (), weights=W) -> Graph:
    linears = [
        Linear(f"layer 0 · attention {part}", "x", (f"w{at}",), part, (f"b{at}",) if at in biases else ())
        for at, part in enumerate(PARTS)
    ]
    ops = (*linears, Add("sum", "key", "value", "logits"))
    widths = {"query": 8, "key": 4, "value": 4, "logits": 4}
    return embedded(32, *ops, widths=widths, tensors=[*weights, *B])


@settings(max_examples=60)
@given(random_graphs())
def test_random_graphs_compute_the_same(graph: Graph) -> None:
    assert_same(graph, merge_linears(graph))


@pytest.mark.parametrize("biases", [(), (0, 1, 2)])
def test_neighbours_become_one_linear_and_views(biases: tuple[int, ...]) -> None:
    before = three(biases)
    after = merge_linears(before)
    assert labels(after) == ["Embed", "Linear", "Add"]
    merged = after.ops[1]
    assert isinstance(merged, Linear)
    assert merged.label == "layer 0 · attention query + key + value"
    assert merged.weights == ("w0", "w1", "w2")
    assert merged.biases == tuple(f"b{at}" for at in biases)
    assert after.buffers[merged.output] == Buffer(16)
    assert after.buffers["query"] == Buffer(8, parent=merged.output, offset=0)
    assert after.buffers["value"] == Buffer(4, parent=merged.output, offset=12)
    assert_same(before, after)


def test_a_bias_does_not_join_linears_without() -> None:
    after = merge_linears(three((1,)))
    assert [op.weights for op in after.ops if isinstance(op, Linear)] == [("w0", "w2"), ("w1",)]
    assert_same(three((1,)), after)


def test_only_weights_that_pack_alike_are_merged() -> None:
    mixed = [W[0], tensor("w1", RANDOM.normal(size=(4, 32)), "Q8_0"), W[2]]
    after = merge_linears(three(weights=mixed))
    assert [op.weights for op in after.ops if isinstance(op, Linear)] == [("w0", "w2"), ("w1",)]
    untouched = merge_linears(three(), alike=lambda left, right: False)
    assert labels(untouched) == labels(three())


@pytest.mark.parametrize(
    ("left", "right", "alike"),
    [
        ("F32", "F32", True),
        ("F16", "BF16", False),
        ("F16", "F32", False),
        ("Q4_0", "Q4_0", True),
        ("Q4_0", "Q4_1", False),
        ("Q4_0", "Q8_0", False),
        ("Q5_0", "Q8_0", True),
        ("Q5_1", "Q8_0", False),
    ],
)
def test_packing_rule(left: str, right: str, alike: bool) -> None:
    first, second = (tensor(name, np.ones((4, 32)), name) for name in (left, right))
    assert same_packing(first, second) is alike
    assert not same_packing(first, tensor("longer", np.ones((4, 64)), left))


def test_a_residual_the_logits_and_other_inputs_are_left_alone() -> None:
    square = [tensor(f"s{at}", RANDOM.normal(size=(32, 32))) for at in range(4)]
    ops = (
        Linear("first", "x", ("s0",), "a", (), "x"),
        Linear("second", "x", ("s1",), "b"),
        Linear("third", "b", ("s2",), "c"),
        Linear("fourth", "b", ("s3",), "logits"),
    )
    graph = embedded(32, *ops, widths=dict.fromkeys(("a", "b", "c", "logits"), 32), tensors=square)
    assert merge_linears(graph).ops == graph.ops


def test_a_linear_that_has_views_already_is_left_alone() -> None:
    graph = three()
    widths = {**graph.buffers, "part": Buffer(2, parent="query", offset=2)}
    before = replace(graph, buffers=widths)
    after = merge_linears(before)
    assert [op.weights for op in after.ops if isinstance(op, Linear)] == [("w0",), ("w1", "w2")]
    assert_same(before, after)
