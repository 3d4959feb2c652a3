"""Guards against: a residual folded into a linear that others read, or read before it is written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from nybble.graph.graph import Graph
from nybble.graph.ops import Add, Linear, RMSNorm
from nybble.graph.passes.fold_residuals import fold_residuals
from nybble.graph.passes.merge_linears import merge_linears

from .small import assert_same, embedded, labels, random_graphs, tensor

RANDOM = np.random.default_rng(3)
TENSORS = [tensor("w", RANDOM.normal(size=(8, 8))), tensor("v", RANDOM.normal(size=(8, 8))), tensor("n", np.ones(8))]
WIDTHS = dict.fromkeys(("a", "b", "c", "logits"), 8)


def graph_of(*ops) -> Graph:
    written = {op.output for op in ops}
    widths = {name: width for name, width in WIDTHS.items() if name in written}
    return embedded(8, *ops, widths=widths, tensors=TENSORS)


@settings(max_examples=60)
@given(random_graphs())
def test_random_graphs_compute_the_same(graph: Graph) -> None:
    assert_same(graph, fold_residuals(graph))
    assert_same(graph, fold_residuals(merge_linears(graph)))  # a side may be a view


@pytest.mark.parametrize("sides", [("x", "a"), ("a", "x")])
def test_either_side_folds(sides: tuple[str, str]) -> None:
    before = graph_of(Linear("linear", "x", ("w",), "a"), Add("sum", *sides, "logits"))
    after = fold_residuals(before)
    assert after.ops[1:] == (Linear("linear", "x", ("w",), "logits", (), "x"),)
    assert set(after.buffers) == {"x", "logits"}
    assert_same(before, after)


def test_the_linear_waits_for_a_residual_written_later() -> None:
    later = RMSNorm("later", "x", "n", "b", 1e-5, 8)
    before = graph_of(Linear("linear", "x", ("w",), "a"), later, Add("sum", "b", "a", "logits"))
    after = fold_residuals(before)
    assert labels(after) == ["Embed", "RMSNorm", "Linear"]
    assert_same(before, after)


def test_of_two_linears_one_takes_the_other() -> None:
    before = graph_of(
        Linear("first", "x", ("w",), "a"), Linear("second", "x", ("v",), "b"), Add("sum", "a", "b", "logits")
    )
    after = fold_residuals(before)
    assert labels(after) == ["Embed", "Linear", "Linear"]
    assert_same(before, after)


def test_a_chain_of_residuals_folds_all() -> None:
    before = graph_of(
        Linear("first", "x", ("w",), "a"),
        Add("sum", "x", "a", "b"),
        Linear("second", "b", ("v",), "c"),
        Add("sum", "b", "c", "logits"),
    )
    after = fold_residuals(before)
    assert labels(after) == ["Embed", "Linear", "Linear"]
    assert_same(before, after)


def test_a_view_of_a_merged_linear_is_not_its_output() -> None:
    before = merge_linears(
        graph_of(Linear("first", "x", ("w",), "a"), Linear("second", "x", ("v",), "b"), Add("sum", "x", "a", "logits"))
    )
    assert fold_residuals(before).ops == before.ops


@pytest.mark.parametrize(
    "ops",
    [
        (Linear("linear", "x", ("w",), "a"), Add("sum", "a", "a", "logits")),
        (Linear("linear", "x", ("w",), "a"), Add("sum", "x", "a", "b"), Add("again", "a", "b", "logits")),
        (Linear("linear", "x", ("w",), "a", (), "x"), Add("sum", "x", "a", "logits")),
        (RMSNorm("norm", "x", "n", "a", 1e-5, 8), Add("sum", "x", "a", "logits")),
    ],
    ids=["both sides", "read twice", "has a residual", "no linear"],
)
def test_what_must_stay(ops) -> None:
    graph = graph_of(*ops)
    assert fold_residuals(graph).ops == graph.ops
