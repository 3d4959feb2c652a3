"""Guards against: a fused op that loses a norm, takes another layer's query, or swallows a buffer others read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from nybble.graph.graph import Buffer, Graph, buffer_written
from nybble.graph.ops import Add, Attention, KVAppend, Op, RMSNorm, Rope, RotateAppend
from nybble.graph.passes.fuse_rotate_append import fuse_rotate_append
from nybble.graph.passes.merge_linears import merge_linears

from .small import HEAD_DIM, KEY_WIDTH, assert_same, embedded, labels, random_graphs, tensor

TENSORS = [tensor(name, np.random.default_rng(at).normal(1, 0.3, HEAD_DIM)) for at, name in enumerate(("qn", "kn"))]
NORM_Q = RMSNorm("query norm", "x", "qn", "nq", 1e-3, HEAD_DIM)
NORM_K = RMSNorm("key norm", "x", "kn", "nk", 1e-3, HEAD_DIM)
ROPE_Q = Rope("query rotation", "x", "rq", HEAD_DIM)
ROPE_K = Rope("key rotation", "x", "rk", HEAD_DIM)
APPEND = KVAppend("layer 0 · KV append", 0, "rk", "x")
ATTENTION = Attention("attention", 0, "rq", "logits", 2, 2, HEAD_DIM, 0.25)


def graph_of(*ops: Op, layers: int = 1) -> Graph:
    names = [name for op in ops if (name := buffer_written(op)) is not None]
    return embedded(KEY_WIDTH, *ops, widths=dict.fromkeys(names, KEY_WIDTH), tensors=TENSORS, layers=layers)


@settings(max_examples=80)
@given(random_graphs(storages=("F32",)))
def test_random_graphs_compute_the_same(graph: Graph) -> None:
    assert_same(graph, fuse_rotate_append(graph))
    assert_same(graph, fuse_rotate_append(merge_linears(graph)))  # q, k and v are views


@pytest.mark.parametrize("normed", ["", "q", "k", "qk"])
def test_a_layer_becomes_one_op(normed: str) -> None:
    ops: list[Op] = []
    if "q" in normed:
        ops.append(NORM_Q)
    if "k" in normed:
        ops.append(NORM_K)
    ops.append(replace(ROPE_Q, input="nq" if "q" in normed else "x"))
    ops.append(replace(ROPE_K, input="nk" if "k" in normed else "x"))
    before = graph_of(*ops, APPEND, ATTENTION)
    after = fuse_rotate_append(before)
    assert labels(after) == ["Embed", "RotateAppend", "Attention"]
    fused = after.ops[1]
    assert isinstance(fused, RotateAppend)
    assert fused.query_norm == ("qn" if "q" in normed else None)
    assert fused.key_norm == ("kn" if "k" in normed else None)
    assert fused.epsilon == (1e-3 if normed else 0.0)
    assert set(after.buffers) == {"x", "rq", "logits"}
    assert_same(before, after)


def test_a_norm_of_the_whole_width_stays_before_the_fused_op() -> None:
    wide = tensor("wide", np.linspace(0.5, 1.5, KEY_WIDTH))
    norm = RMSNorm("norm", "x", "wide", "nk", 1e-3, KEY_WIDTH)
    ops = (norm, ROPE_Q, replace(ROPE_K, input="nk"), APPEND, ATTENTION)
    names = dict.fromkeys(("nk", "rq", "rk", "logits"), KEY_WIDTH)
    before = embedded(KEY_WIDTH, *ops, widths=names, tensors=[wide], layers=1)
    after = fuse_rotate_append(before)
    assert labels(after) == ["Embed", "RMSNorm", "RotateAppend", "Attention"]
    assert_same(before, after)


def test_a_view_of_the_rotated_query_counts_as_a_reader() -> None:
    """Guards against moving the rotation behind an op that reads part of its result."""
    ops = (ROPE_Q, ROPE_K, Add("sum", "part", "part", "a"), APPEND, ATTENTION)
    widths = {**dict.fromkeys(("rq", "rk", "logits"), KEY_WIDTH), "part": Buffer(4, parent="rq", offset=4), "a": 4}
    graph = embedded(KEY_WIDTH, *ops, widths=widths, layers=1)
    assert fuse_rotate_append(graph).ops == graph.ops


UNTOUCHED = {
    "different epsilons": (
        NORM_Q,
        replace(NORM_K, epsilon=1e-5),
        replace(ROPE_Q, input="nq"),
        replace(ROPE_K, input="nk"),
        APPEND,
        ATTENTION,
    ),
    "the rotated key is read elsewhere": (
        ROPE_Q,
        ROPE_K,
        APPEND,
        replace(ATTENTION, output="a"),
        Add("sum", "a", "rk", "logits"),
    ),
    "the query is the rotated key": (ROPE_K, APPEND, replace(ATTENTION, query="rk")),
    "the query is read before the append": (
        ROPE_Q,
        ROPE_K,
        Add("sum", "rq", "rq", "a"),
        APPEND,
        replace(ATTENTION, output="b"),
        Add("sum", "a", "b", "logits"),
    ),
    "the query is rotated from what is written later": (
        ROPE_K,
        APPEND,
        Add("sum", "x", "x", "a"),
        replace(ROPE_Q, input="a"),
        ATTENTION,
    ),
    "the key is not rotated": (ROPE_Q, replace(APPEND, key="x"), ATTENTION),
    "the query is not rotated": (ROPE_K, APPEND, replace(ATTENTION, query="x")),
}


@pytest.mark.parametrize("ops", UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_what_must_stay(ops: tuple[Op, ...]) -> None:
    graph = graph_of(*ops)
    assert fuse_rotate_append(graph).ops == graph.ops


def test_a_query_shared_by_two_layers_is_taken_once() -> None:
    ops = (
        ROPE_Q,
        ROPE_K,
        replace(ROPE_K, output="rk2"),
        APPEND,
        KVAppend("layer 1 · KV append", 1, "rk2", "x"),
        replace(ATTENTION, output="a"),
        replace(ATTENTION, layer=1, output="b"),
        Add("sum", "a", "b", "logits"),
    )
    before = graph_of(*ops, layers=2)
    after = fuse_rotate_append(before)
    assert labels(after).count("RotateAppend") == 1 and labels(after).count("KVAppend") == 1
    assert_same(before, after)
