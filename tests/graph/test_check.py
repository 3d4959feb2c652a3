"""Guards against: a malformed graph reaching the native compiler, which trusts what it is given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from nybble.errors import NybbleError
from nybble.graph.check import GraphError, check
from nybble.graph.graph import Buffer, Graph
from nybble.graph.ops import (
    Add,
    Attention,
    Embed,
    KVAppend,
    Linear,
    Op,
    Quantise,
    RMSNorm,
    Rope,
    RotateAppend,
    SelectOutputs,
    SwiGLU,
)

from .small import HEAD_DIM, KEY_WIDTH, embedded, random_graphs, tensor

TENSORS = [
    tensor("w", np.zeros((KEY_WIDTH, KEY_WIDTH))),
    tensor("narrow", np.zeros((8, 8))),
    tensor("vector", np.zeros(KEY_WIDTH)),
    tensor("head", np.zeros(HEAD_DIM)),
]
GOOD: tuple[Op, ...] = (
    RMSNorm("norm", "x", "vector", "n", 1e-5, KEY_WIDTH),
    Linear("linear", "n", ("w",), "k", ("vector",)),
    RotateAppend("append", 0, "k", "k", "k", "q", HEAD_DIM, "head", "head", 1e-5),
    Attention("attention", 0, "q", "a", 2, 2, HEAD_DIM, 0.25),
    Quantise("codes", "a", "c"),
    Linear("down", "c", ("w",), "d", (), "x"),
    SelectOutputs("rows", "d", "s"),
    Add("sum", "s", "s", "logits"),
)
WIDTHS: dict[str, int | Buffer] = {
    **dict.fromkeys(("n", "k", "q", "a", "d"), KEY_WIDTH),
    "c": Buffer(KEY_WIDTH, quantised_block=8),
    "s": Buffer(KEY_WIDTH, per_output=True),
    "logits": Buffer(KEY_WIDTH, per_output=True),
}


def good() -> Graph:
    return embedded(KEY_WIDTH, *GOOD, widths=WIDTHS, tensors=TENSORS, layers=1)


def with_op(label: str, **changes: object) -> Graph:
    graph = good()
    ops = tuple(replace(op, **changes) if op.label == label else op for op in graph.ops)  # type: ignore[arg-type]
    return replace(graph, ops=ops)


def with_buffer(name: str, **changes: object) -> Graph:
    graph = good()
    buffers = {**graph.buffers, name: replace(graph.buffers[name], **changes)}  # type: ignore[arg-type]
    return replace(graph, buffers=buffers)


def test_a_good_graph_is_returned() -> None:
    graph = good()
    assert check(graph) is graph


@settings(max_examples=30)
@given(random_graphs())
def test_random_graphs_are_good(graph: Graph) -> None:
    assert check(graph) is graph


BAD_OPS = [
    ("norm", {"input": "nowhere"}, "not among the buffers"),
    ("norm", {"input": "k"}, "before anything wrote it"),
    ("norm", {"weight": "nothing"}, "does not exist"),
    ("norm", {"weight": "head"}, "shape"),
    ("norm", {"group": 0}, "groups of 0"),
    ("norm", {"group": 5}, "groups of 5"),
    ("norm", {"epsilon": float("nan")}, "epsilon"),
    ("norm", {"epsilon": -1.0}, "epsilon"),
    ("linear", {"weights": ()}, "without weights"),
    ("linear", {"weights": ("narrow",)}, "shape"),
    ("linear", {"weights": ("vector",)}, "shape"),
    ("linear", {"weights": ("w", "w")}, "biases"),
    ("linear", {"biases": ("head",)}, "shape"),
    ("linear", {"biases": ("vector", "vector")}, "biases"),
    ("linear", {"output": "n"}, "second time"),
    ("linear", {"residual": "k"}, "before anything wrote it"),
    ("append", {"layer": 1}, "layer 1 of 1"),
    ("append", {"layer": -1}, "layer -1 of 1"),
    ("append", {"head_dim": 8}, "head_dim"),
    ("append", {"query_norm": "vector"}, "shape"),
    ("append", {"epsilon": float("inf")}, "epsilon"),
    ("attention", {"layer": 1}, "before it was appended"),
    ("attention", {"heads": 3}, "evenly"),
    ("attention", {"heads": 0}, "evenly"),
    ("attention", {"heads": 4}, "width"),
    ("attention", {"kv_heads": 1}, "the cache has"),
    ("attention", {"head_dim": 8}, "the cache has"),
    ("attention", {"scale": float("nan")}, "scale"),
    ("codes", {"output": "d"}, "not quantised"),
    ("rows", {"input": "c"}, "quantised"),
    ("rows", {"input": "s"}, "before anything wrote it"),
    ("sum", {"left": "d"}, "does not have rows"),
    ("sum", {"output": "x"}, "second time"),
]


@pytest.mark.parametrize(("label", "changes", "words"), BAD_OPS, ids=str)
def test_a_bad_op_is_named(label: str, changes: dict[str, object], words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        check(with_op(label, **changes))
    assert caught.value.label == label and str(caught.value).startswith(f"{label}: ")
    assert isinstance(caught.value, NybbleError)


BAD_BUFFERS = [
    ("n", {"width": 0}, "at least 1"),
    ("n", {"offset": 4}, "without a parent"),
    ("n", {"quantised_block": 0}, "at least 1"),
    ("n", {"parent": "nowhere"}, "does not exist"),
    ("n", {"parent": "x", "offset": 1}, "outside"),
    ("n", {"parent": "x", "offset": -1}, "outside"),
    ("n", {"parent": "c"}, "quantised"),
    ("n", {"parent": "s"}, "per_output"),
    ("n", {"parent": "n"}, "itself a view"),
    ("logits", {"width": 8}, "expected"),
    ("logits", {"quantised_block": 8}, "fp32"),
]


@pytest.mark.parametrize(("name", "changes", "words"), BAD_BUFFERS, ids=str)
def test_a_bad_buffer_is_named(name: str, changes: dict[str, object], words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        check(with_buffer(name, **changes))
    assert caught.value.label == name


@pytest.mark.parametrize(
    ("name", "changes", "label"),
    [
        ("k", {"width": 16}, "linear"),
        ("n", {"width": 16}, "norm"),
        ("q", {"width": 64}, "append"),
        ("d", {"width": 16}, "down"),
        ("q", {"per_output": True}, "append"),
        ("s", {"per_output": False}, "rows"),
        ("d", {"per_output": True}, "down"),
        ("n", {"parent": "x"}, "norm"),
        ("d", {"quantised_block": 8}, "down"),
        ("q", {"quantised_block": 8}, "append"),
        ("c", {"quantised_block": None}, "codes"),
    ],
    ids=str,
)
def test_a_buffer_that_does_not_suit_its_op(name: str, changes: dict[str, object], label: str) -> None:
    with pytest.raises(GraphError) as caught:
        check(with_buffer(name, **changes))
    assert caught.value.label == label


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logits": "nowhere"}, "nowhere"),
        ({"vocabulary": 0}, "vocabulary"),
        ({"layers": -1}, "layers"),
        ({"layers": 2}, "only 1 of 2"),
        ({"context_length": 0}, "context_length"),
        ({"inverse_frequencies": np.zeros(3)}, "inverse_frequencies"),
    ],
    ids=str,
)
def test_bad_sizes(changes: dict[str, object], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        check(replace(good(), **changes))  # type: ignore[arg-type]


def test_an_orphan_buffer_is_named() -> None:
    graph = good()
    with pytest.raises(GraphError, match="orphan: is never written"):
        check(replace(graph, buffers={**graph.buffers, "orphan": Buffer(8)}))


def test_a_cache_is_appended_once() -> None:
    graph = good()
    again = KVAppend("again", 0, "k", "k")
    with pytest.raises(GraphError, match="again: appends"):
        check(replace(graph, ops=(*graph.ops[:4], again, *graph.ops[4:])))


def test_a_table_must_be_a_matrix_of_the_right_width() -> None:
    for table in ("vector", "narrow"):
        graph = good()
        ops = (Embed("embedding", table, "x"), *graph.ops[1:])
        with pytest.raises(GraphError, match="embedding: "):
            check(replace(graph, ops=ops))


@pytest.mark.parametrize(
    "op", [Rope("bad", "x", "y", HEAD_DIM), SwiGLU("bad", "x", "x", "y"), Add("bad", "x", "x", "y")]
)
def test_the_output_is_as_wide_as_the_input(op: Op) -> None:
    with pytest.raises(GraphError, match="bad: 'y' has width 16"):
        check(embedded(KEY_WIDTH, op, widths={"y": 16}, logits="y"))


def test_rope_needs_whole_heads() -> None:
    with pytest.raises(GraphError, match="whole heads"):
        check(embedded(24, Rope("bad", "x", "y", HEAD_DIM), widths={"y": 24}, logits="y"))
