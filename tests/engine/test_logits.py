"""Guards against: logits that are not those the graph means, or that depend on how they were computed."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import nybble
from nybble import _native
from nybble.engine.loading import plan_file
from nybble.engine.session import LOGITS_STEP_TOKENS, STEP_TOKENS, Session
from nybble.errors import ContextOverflow
from nybble.graph.dispatch import Accuracy
from nybble.graph.plan import Plan
from nybble.graph.reference import ReferenceCache, ReferenceWeights, run
from tests.native.programs import sweep

from .small_models import ARCHITECTURES, STORAGES, bits, cold_logits, small_gguf, some_ids

CONTEXT = STEP_TOKENS + 60
SHORT_PROMPTS = 40
BORDERS = (
    1,
    *(LOGITS_STEP_TOKENS + more for more in (-1, 0, 1)),
    *(STEP_TOKENS + more for more in (-1, 0, 1)),
    CONTEXT - 1,
    CONTEXT,
)
CLEAN = 2.0**-16
"""256 roundings of fp32 that all go the same way: what arithmetic may do to a logit, relative to the largest."""


@cache
def path_of(folder: Path, architecture: str, storage: str) -> Path:
    path = folder / f"{architecture}-{storage}.gguf"
    return small_gguf(path, architecture, storage, context_length=CONTEXT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder: Path) -> nybble.LLM:
    return nybble.load(path_of(folder, "qwen3", "mixed"), threads=2)


def reference(
    plan: Plan, ids: list[int], weights: ReferenceWeights, cache: type[np.floating] = np.float16
) -> NDArray[np.float64]:
    return run(plan.graph, ids, ReferenceCache(plan.graph, cache, weights))


@pytest.mark.parametrize("accuracy", ["int8", "f32"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_the_references(folder: Path, architecture: str, storage: str, accuracy: str) -> None:
    """Two bounds, because the graph itself rounds: keys and values to fp16, with int8 also activations to 127 steps.

    Where a value lies within an fp32 error of the middle between two steps, a correct engine may take the other step
    than the fp64 reference does. That is rare, so of many short prompts most must have no such value, and differ by
    fp32 arithmetic alone. Where it happens, one value moves by a whole step. Rounding at all moved *every* value by up
    to half a step, and what that did to the logits can be computed: no logit may be further off than twice that.
    """
    path = path_of(folder, architecture, storage)
    model = nybble.load(path, threads=2, accuracy=accuracy)
    plan, unrounded = plan_file(path, Accuracy(accuracy))[1], plan_file(path, Accuracy.F32)[1]
    weights = ReferenceWeights(), ReferenceWeights()
    clean, rounding = 0, 0.0
    for seed in range(SHORT_PROMPTS):
        ids = some_ids(model, 3, seed)
        expected = reference(plan, ids, weights[0])
        error = np.abs(model.logits(ids) - expected).max() / np.abs(expected).max()
        clean += bool(error < CLEAN)
    assert clean >= 0.8 * SHORT_PROMPTS

    ids = some_ids(model, 100)
    expected = reference(plan, ids, weights[0])
    rounding = np.abs(reference(unrounded, ids, weights[1], np.float64) - expected).max()
    error = np.abs(model.logits(ids) - expected).max()
    print(f"{clean} of {SHORT_PROMPTS} clean, {error:.1e} off where rounding moves {rounding:.1e}")
    assert error < 2 * rounding + CLEAN * np.abs(expected).max()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("kind", [("llama", "Q4_1"), ("qwen2", "F32"), ("qwen3", "mixed")], ids="-".join)
@pytest.mark.parametrize("accuracy", ["int8", "f32"])
def test_every_machine_gives_the_same_bits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, isa: str, threads: int, kind: tuple[str, str], accuracy: str
) -> None:
    path = path_of(folder, *kind)
    monkeypatch.setenv("NYBBLE_ISA", "portable")
    plain = nybble.load(path, threads=1, accuracy=accuracy)
    monkeypatch.setenv("NYBBLE_ISA", isa)
    other = nybble.load(path, threads=threads, accuracy=accuracy)
    assert (other.info.isa, other.info.threads) == (isa, threads)
    ids = some_ids(plain, 70)
    np.testing.assert_array_equal(bits(other.logits(ids)), bits(plain.logits(ids)))


@sweep(15)
@given(st.data())
def test_a_prompt_in_any_pieces_gives_the_same_bits(model: nybble.LLM, data: st.DataObject) -> None:
    """Also across the borders of steps and of the cache's blocks, and decoded token by token."""
    length = data.draw(st.sampled_from([2, 33, 65, STEP_TOKENS + 1, CONTEXT]))
    cuts = data.draw(st.lists(st.integers(1, length), max_size=6))
    ids, session = some_ids(model, length), model.new_session()
    for begin, end in pairwise(sorted({0, *cuts, length})):
        if end - begin == 1 and begin:
            logits = session.decode(ids[begin])
        else:
            logits, reused = session.prefill(ids[:end])
            assert reused == begin
    np.testing.assert_array_equal(bits(logits), cold_logits(model, ids))
    assert session.ids == tuple(ids)


@pytest.mark.parametrize("length", [1, 40])
def test_decoding_gives_the_bits_of_all_logits(model: nybble.LLM, length: int) -> None:
    ids, session = some_ids(model, length + 30), model.new_session()
    found = [session.prefill(ids[:length])[0], *map(session.decode, ids[length:])]
    np.testing.assert_array_equal(bits(np.stack(found)), bits(model.logits(ids))[length - 1 :])


@pytest.mark.parametrize(
    "length",
    [
        1,
        LOGITS_STEP_TOKENS,
        LOGITS_STEP_TOKENS + 1,
        STEP_TOKENS - 1,
        STEP_TOKENS,
        STEP_TOKENS + 1,
        CONTEXT - 1,
        CONTEXT,
    ],
)
def test_prompts_at_every_border(model: nybble.LLM, length: int) -> None:
    """The last logits of a prompt are the same from ``logits`` and from a session, and equal those decoded last."""
    ids = some_ids(model, length)
    everything = bits(model.logits(ids))
    assert everything.shape == (length, model.vocabulary)
    np.testing.assert_array_equal(everything[-1], cold_logits(model, ids))
    if length > 1:
        session = model.new_session()
        session.prefill(ids[:-1])
        np.testing.assert_array_equal(everything[-1], bits(session.decode(ids[-1])))
        assert session.is_full is (length == CONTEXT)


def test_more_than_the_context_is_refused_with_both_counts(model: nybble.LLM) -> None:
    """And leaves what was there."""
    session, ids = model.new_session(), some_ids(model, CONTEXT + 1)
    session.prefill(ids[:CONTEXT])
    calls = (session.prefill, session.all_logits, model.logits, lambda given: session.decode(given[-1]))
    for call in calls:
        with pytest.raises(ContextOverflow, match=rf"{CONTEXT + 1} .* {CONTEXT};") as caught:
            call(ids)
        assert (caught.value.prompt_tokens, caught.value.context_length) == (CONTEXT + 1, CONTEXT)
    assert session.ids == tuple(ids[:CONTEXT])
    for stream in (model.stream("a" * 2000, raw=True), model.stream("a" * 2000), model.chat().send("a" * 2000)):
        with pytest.raises(ContextOverflow, match=f"the context holds {CONTEXT}"):
            next(stream)


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([], "empty"),
        ([-1], "-1 is not one of 0..299"),
        ([5, 300], "300 is not one of 0..299"),
        ([1.5], "1.5 is not a whole number"),
        ("12", "'1' is not a whole number"),
    ],
)
def test_what_is_no_prompt_is_refused(model: nybble.LLM, ids: list[int], problem: str) -> None:
    with pytest.raises(nybble.NybbleError, match=problem):
        model.logits(ids)
    with pytest.raises(nybble.NybbleError, match=problem):
        model.continue_ids(ids, None, model.options(1, (), {}))
    if ids:
        with pytest.raises(nybble.NybbleError, match=problem):
            model.detokenize(ids)
    else:
        assert model.detokenize(ids) == ""


def test_a_session_needs_tokens(model: nybble.LLM) -> None:
    session = Session(model._runner, 8)
    for call in (session.prefill, session.all_logits):
        with pytest.raises(nybble.NybbleError, match="empty"):
            call([])


def test_ids_may_be_an_array(model: nybble.LLM) -> None:
    ids = some_ids(model, 9)
    np.testing.assert_array_equal(model.logits(np.array(ids, np.uint16)), model.logits(tuple(ids)))
