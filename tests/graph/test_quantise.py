"""Guards against: linears that read activations rounded in other blocks than theirs, or rounded twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.graph.graph import Buffer, Graph, buffers_read
from nybble.graph.ops import Add, Attention, KVAppend, Linear, Op, Quantise, RMSNorm, SwiGLU
from nybble.graph.passes.fold_quantise import fold_quantise
from nybble.graph.passes.quantise_activations import Rounding, quantise_activations
from nybble.graph.reference import ReferenceCache, fake_quantise, run

from .small import HEAD_DIM, KEY_WIDTH, STEPS, embedded, labels, logits_of, random_graphs, tensor

RANDOM = np.random.default_rng(5)
W = [tensor(f"w{at}", RANDOM.normal(size=(KEY_WIDTH, KEY_WIDTH))) for at in range(3)]
NORMS = [tensor("n", np.ones(KEY_WIDTH)), tensor("h", np.ones(HEAD_DIM))]
HEAD = Linear("head", "a", ("w0",), "logits")


def graph_of(*ops: Op, layers: int = 0) -> Graph:
    names = {op.output for op in ops if not isinstance(op, KVAppend)}
    widths = dict.fromkeys(names, KEY_WIDTH)
    return embedded(KEY_WIDTH, *ops, widths=widths, tensors=[*W, *NORMS], layers=layers)


LAYOUTS = ("panel32", "panel32k8")
BLOCKS = st.sampled_from([None, 4, 8, 16, 24, 32])


@settings(max_examples=60)
@given(random_graphs(), st.lists(BLOCKS, min_size=1, max_size=4))
def test_each_linear_reads_the_block_it_asked_for(graph: Graph, blocks: list[int | None]) -> None:
    def rounding_of(linear: Linear) -> Rounding | None:
        index = len(linear.weights[0] + linear.output)
        block = blocks[index % len(blocks)]
        return None if block is None else Rounding(block, LAYOUTS[index % 3 % 2])

    quantised = quantise_activations(graph, rounding_of)
    for before, after in zip(
        (op for op in graph.ops if isinstance(op, Linear)),
        (op for op in quantised.ops if isinstance(op, Linear)),
        strict=True,
    ):
        buffer, rounding = quantised.buffers[after.input], rounding_of(before)
        assert buffer.quantised_block == (rounding and rounding.block)
        assert rounding is None or buffer.layout == rounding.layout
    pairs = [(op.input, op.output) for op in quantised.ops if isinstance(op, Quantise)]
    assert len(pairs) == len(set(pairs))


@settings(max_examples=80)
@given(random_graphs(), st.sampled_from([4, 8, 16, 24, 32]))
def test_folding_changes_no_bit(graph: Graph, block: int) -> None:
    quantised = quantise_activations(graph, lambda linear: Rounding(block))
    for expected, found in zip(logits_of(quantised, STEPS), logits_of(fold_quantise(quantised), STEPS), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_readers_of_one_buffer_share_a_quantise() -> None:
    graph = graph_of(
        Linear("first", "x", ("w0",), "b"),
        Linear("second", "x", ("w1",), "c"),
        Linear("third", "x", ("w2",), "d"),
        Add("sum", "b", "c", "e"),
        Add("sum", "d", "e", "logits"),
    )
    after = quantise_activations(graph, lambda op: Rounding(16 if op.label == "second" else 32))
    assert labels(after) == ["Embed", "Quantise", "Linear", "Quantise", "Linear", "Linear", "Add", "Add"]


def test_the_linear_sees_rounded_values() -> None:
    graph = quantise_activations(graph_of(Linear("head", "x", ("w0",), "logits")), lambda linear: Rounding(16))
    plain = graph_of(Linear("head", "x", ("w0",), "logits"))
    cache = ReferenceCache(plain)
    x, weight = (cache.weights(plain.tensors[name], np.dtype(np.float64)) for name in ("table", "w0"))
    expected = fake_quantise(x[[3, 5]]) @ weight.T
    np.testing.assert_allclose(run(graph, [3, 5], ReferenceCache(graph)), expected, rtol=1e-12, atol=1e-12)


def test_none_and_quantised_inputs_stay() -> None:
    graph = graph_of(Linear("head", "x", ("w0",), "logits"))
    assert quantise_activations(graph, lambda linear: None).ops == graph.ops
    once = quantise_activations(graph, lambda linear: Rounding(16))
    assert quantise_activations(once, lambda linear: Rounding(16)).ops == once.ops


FOLDS = {
    "norm": (RMSNorm("norm", "x", "n", "a", 1e-5, KEY_WIDTH),),
    "activation": (SwiGLU("activation", "x", "x", "a"),),
}
ATTENTION = (KVAppend("append", 0, "x", "x"), Attention("attention", 0, "x", "a", 2, 2, HEAD_DIM, 0.25))


@pytest.mark.parametrize("ops", FOLDS.values(), ids=FOLDS.keys())
def test_the_producer_writes_codes_itself(ops: tuple[Op, ...]) -> None:
    graph = graph_of(*ops, HEAD)
    after = fold_quantise(quantise_activations(graph, lambda linear: Rounding(8)))
    assert labels(after) == labels(graph)
    assert after.buffers[buffers_read(after.ops[-1])[0]] == Buffer(KEY_WIDTH, quantised_block=8)
    assert "a" not in after.buffers


STAYS = {
    "a norm per head": ((RMSNorm("norm", "x", "h", "a", 1e-5, HEAD_DIM), HEAD), 8),
    "attention, whose threads compute parts of rows": ((*ATTENTION, HEAD), 8),
    "another reader": ((*FOLDS["norm"], Linear("linear", "a", ("w0",), "b"), Add("sum", "a", "b", "logits")), 8),
    "an embedding": ((Linear("head", "x", ("w0",), "logits"),), 8),
}


@pytest.mark.parametrize(("ops", "block"), STAYS.values(), ids=STAYS.keys())
def test_what_keeps_its_quantise(ops: tuple[Op, ...], block: int) -> None:
    layers = sum(isinstance(op, KVAppend) for op in ops)
    quantised = quantise_activations(graph_of(*ops, layers=layers), lambda linear: Rounding(block))
    assert "Quantise" in labels(quantised)
    assert fold_quantise(quantised).ops == quantised.ops


def test_two_block_sizes_keep_both_quantises() -> None:
    graph = graph_of(
        *FOLDS["norm"],
        Linear("first", "a", ("w0",), "b"),
        Linear("second", "a", ("w1",), "c"),
        Add("sum", "b", "c", "logits"),
    )
    quantised = quantise_activations(graph, lambda op: Rounding(8 if op.label == "first" else 16))
    assert labels(fold_quantise(quantised)).count("Quantise") == 2
