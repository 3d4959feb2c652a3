"""Guards against: ops that are right alone and wrong together; answers that depend on who else is in the step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from numpy.typing import NDArray

from nybble import _native
from nybble.errors import UnsupportedFeature
from nybble.graph.compile import compile_plan
from nybble.graph.dispatch import Accuracy
from nybble.graph.graph import Graph
from nybble.graph.plan import Plan, plan
from nybble.graph.reference import ReferenceCache, run
from nybble.models.build import build_graph
from tests.graph.small import STEPS, random_graphs, tensor
from tests.models.tiny import TinyModel, tiny_checkpoint

from .programs import ISAS, bits, pool, sweep

THREADS = (1, 2, 3, 7)


def new_cache(graph: Graph, capacity: int = 200) -> _native.KVCache:
    return _native.KVCache(graph.layers, graph.kv_heads, graph.head_dim, capacity)


@cache
def decoder() -> Graph:
    """A small model with several storage types, grouped heads, q/k norms and a vocabulary that is no whole panel."""
    graph = build_graph(tiny_checkpoint(TinyModel(architecture="qwen3", head_dim=32, heads=6, vocabulary=290)))
    storages = {"attn_q": "Q4_1", "attn_k": "Q4_1", "attn_v": "Q8_0", "ffn_down": "Q5_0", "ffn_gate": "Q4_0"}

    def stored(name: str) -> str:
        return next((storage for part, storage in storages.items() if f"{part}.weight" in name), "F32")

    tensors = {
        name: tensor(name, old.rows.view("<f4").reshape(old.shape), stored(name)) for name, old in graph.tensors.items()
    }
    return replace(graph, tensors=tensors)


@cache
def program(isa: str = ISAS[0], threads: int = 1) -> _native.Program:
    return compile_plan(plan(decoder(), Accuracy.INT8, isa), pool(threads)).program


def logits_of(program: _native.Program, *sequences: tuple[_native.KVCache, list[int]]) -> list[NDArray[np.uint32]]:
    """The bits of all logits of one step, a matrix for each sequence."""
    tokens = [token for _, of_sequence in sequences for token in of_sequence]
    spans = [(cache, len(of_sequence)) for cache, of_sequence in sequences]
    logits = bits(program.run(tokens, spans, list(range(len(tokens)))))
    return np.split(logits, np.cumsum([len(of_sequence) for _, of_sequence in sequences])[:-1])


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, decoder().vocabulary, count).tolist()


def test_weights_in_another_layout_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of cores with matrix instructions and those beside them: packing, rounding and kernels know of it."""
    kernels = sorted(_native.linear_kernels(), key=lambda kernel: kernel[-1] == "panel32")
    monkeypatch.setattr(_native, "linear_kernels", lambda: kernels)
    planned = plan(decoder(), Accuracy.INT8, "portable")
    assert {matrix.layout for matrix in planned.matrices.values()} == {"panel32", "panel32k8"}
    other = compile_plan(planned, pool(2)).program
    caches = new_cache(decoder()), new_cache(decoder())
    for count in (11, 1, 2):
        tokens = some_tokens(count, count)
        expected, found = (
            logits_of(one, (cache, tokens))[0] for one, cache in zip((program("portable"), other), caches, strict=True)
        )
        np.testing.assert_array_equal(found, expected)


def planned_or_rejected(graph: Graph, accuracy: Accuracy, isa: str) -> Plan:
    """The plan of a random graph, or another graph where a RoPE stands alone, which native programs do not have."""
    try:
        return plan(graph, accuracy, isa)
    except UnsupportedFeature:
        reject()


def test_threads_on_different_instruction_sets_give_the_same_bits() -> None:
    tokens = some_tokens(70)
    (expected,) = logits_of(program("portable"), (new_cache(decoder()), tokens))
    isas = [ISAS[thread % len(ISAS)] for thread in range(5)]
    mixed = compile_plan(plan(decoder(), Accuracy.INT8, ISAS[0]), pool(5), isas=isas).program
    (found,) = logits_of(mixed, (new_cache(decoder()), tokens))
    np.testing.assert_array_equal(found, expected)
    cache = new_cache(decoder())
    for position, token in enumerate(tokens[:20]):
        (found,) = logits_of(mixed, (cache, [token]))
        np.testing.assert_array_equal(found[0], expected[position])


@pytest.mark.parametrize("isas", [["portable"], ["portable", "avx1024"], ["portable"] * 3, []])
def test_each_thread_runs_what_its_cpu_has(isas: list[str]) -> None:
    with pytest.raises(ValueError, match="instruction set"):
        compile_plan(plan(decoder(), Accuracy.INT8, "portable"), pool(2), isas=isas)


@sweep(60)
@given(random_graphs(storages=("F32", "F32", "F16", "Q8_0", "Q5_0", "Q4_0", "Q4_1")), st.sampled_from(ISAS))
def test_random_graphs_compute_what_the_reference_does(graph: Graph, isa: str) -> None:
    """fp32 against fp64, through a cache that rounds to fp16, where the last bit may fall either way."""
    planned = planned_or_rejected(graph, Accuracy.F32, isa)
    program = compile_plan(planned, pool(2)).program
    reference, cache = ReferenceCache(graph), new_cache(graph)
    for tokens, outputs in STEPS:
        rows = list(range(len(tokens))) if outputs is None else list(outputs)
        expected = run(graph, tokens, reference, outputs)
        found = program.run(list(tokens), [(cache, len(tokens))], rows)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3 * max(1.0, np.abs(expected).max()))


@sweep(60)
@given(random_graphs(storages=("F32", "Q8_0", "Q5_0", "Q4_0", "Q4_1")), st.sampled_from(ISAS))
def test_random_graphs_with_int8_activations(graph: Graph, isa: str) -> None:
    """The lowered graph's reference rounds activations at the same places; a code on a tie may differ by one."""
    planned = planned_or_rejected(graph, Accuracy.INT8, isa)
    program = compile_plan(planned, pool(2)).program
    reference, cache = ReferenceCache(planned.graph), new_cache(graph)
    for tokens, outputs in STEPS:
        rows = list(range(len(tokens))) if outputs is None else list(outputs)
        expected = run(planned.graph, tokens, reference, outputs)
        found = program.run(list(tokens), [(cache, len(tokens))], rows)
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-2 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", THREADS)
def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(isa: str, threads: int) -> None:
    tokens = some_tokens(70)
    (expected,) = logits_of(program("portable"), (new_cache(decoder()), tokens))
    (found,) = logits_of(program(isa, threads), (new_cache(decoder()), tokens))
    np.testing.assert_array_equal(found, expected)


@sweep(25)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    steps=st.integers(1, 3),
    isa=st.sampled_from(ISAS),
    threads=st.sampled_from(THREADS),
)
def test_a_sequence_does_not_notice_its_neighbours(lengths: list[int], steps: int, isa: str, threads: int) -> None:
    """In a batch, some prefilling and some decoding, each sequence's logits are what they are alone."""
    executor = program(isa, threads)
    alone = [new_cache(decoder()) for _ in lengths]
    together = [new_cache(decoder()) for _ in lengths]
    for step in range(steps):
        counts = lengths if step == 0 else [1 if index % 2 else length for index, length in enumerate(lengths)]
        tokens = [some_tokens(count, 10 * step + index) for index, count in enumerate(counts)]
        expected = [logits_of(executor, pair)[0] for pair in zip(alone, tokens, strict=True)]
        found = logits_of(executor, *zip(together, tokens, strict=True))
        for index in range(len(lengths)):
            np.testing.assert_array_equal(found[index], expected[index], f"sequence {index}")


@sweep(25)
@given(cuts=st.lists(st.integers(0, 70), max_size=5), isa=st.sampled_from(ISAS), threads=st.sampled_from(THREADS))
def test_a_prompt_in_pieces_equals_the_whole(cuts: list[int], isa: str, threads: int) -> None:
    tokens = some_tokens(70)
    (expected,) = logits_of(program(), (new_cache(decoder()), tokens))
    executor, cache = program(isa, threads), new_cache(decoder())
    edges = sorted({0, 70, *cuts})
    pieces = [tokens[begin:end] for begin, end in pairwise(edges)]
    found = [logits_of(executor, (cache, piece))[0] for piece in pieces]
    np.testing.assert_array_equal(np.concatenate(found), expected)


def test_only_the_rows_asked_for_are_computed_and_in_that_order() -> None:
    """Also none, as when a prompt is read in pieces."""
    tokens = some_tokens(20)
    (whole,) = logits_of(program(), (new_cache(decoder()), tokens))
    for rows in ([19], [0], [3, 3, 19, 0], []):
        cache = new_cache(decoder())
        found = program().run(tokens, [(cache, 20)], rows)
        np.testing.assert_array_equal(bits(found), whole[np.array(rows, int)])
        assert cache.length == 20


def test_small_steps_after_large_ones_give_the_same() -> None:
    tokens = some_tokens(90)
    (expected,) = logits_of(program("portable"), (new_cache(decoder()), tokens[:3]))
    logits_of(program("portable"), (new_cache(decoder()), tokens))
    (found,) = logits_of(program("portable"), (new_cache(decoder()), tokens[:3]))
    np.testing.assert_array_equal(found, expected)
