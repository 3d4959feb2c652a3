"""Guards against: a sequence that keeps what it should have forgotten, or forgets what it could reuse."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nybble
from nybble.engine import session as session_module
from nybble.engine.session import LOGITS_STEP_TOKENS, STEP_TOKENS, Session, SessionPool, common_prefix
from nybble.errors import ContextOverflow, InvalidParameter, NumericalError
from tests.native.programs import sweep

from .interrupts import lines_run, raising_at_line
from .small_models import bits, cold_logits, small_gguf, some_ids, spoilt_gguf

CONTEXT = 40
RARE = 123
"""A token whose embedding is NaN in some of the models."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nybble.LLM:
    path = small_gguf(tmp_path_factory.mktemp("models") / "model.gguf", storage="Q4_1", context_length=CONTEXT)
    return nybble.load(path, threads=2)


@sweep(40)
@given(st.data())
def test_a_walk_over_a_tree_of_prompts(model: nybble.LLM, data: st.DataObject) -> None:
    """Prompts that share any prefix with what is there, decoding, all logits: bits as if cold, and honest counts."""
    walker = model.new_session()
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["prefill", "prefill", "decode", "all"]))
        kept = data.draw(st.integers(0, len(walker.ids)))
        fresh = some_ids(model, data.draw(st.integers(0, CONTEXT - kept)), data.draw(st.integers(0, 3)))
        before, ids = walker.ids, [*walker.ids[:kept], *fresh]
        if action == "decode":
            if walker.is_full:
                with pytest.raises(ContextOverflow):
                    walker.decode(5)
                continue
            ids = [*before, fresh[0] if fresh else 5]
            found = walker.decode(ids[-1])
        elif not ids:
            with pytest.raises(InvalidParameter):
                walker.prefill(ids)
            continue
        elif action == "all":
            found = walker.all_logits(ids)[-1]
        else:
            found, reused = walker.prefill(ids)
            assert reused == min(common_prefix(before, ids), len(ids) - 1) >= min(kept, len(ids) - 1)
        assert walker.ids == tuple(ids)
        assert walker.is_full is (len(ids) == CONTEXT)
        np.testing.assert_array_equal(bits(found), cold_logits(model, ids))


@sweep(50)
@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix(left: list[int], right: list[int]) -> None:
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]


class CountingProgram:
    """Counts the tokens a session gives to its program, and raises ``error`` before step number ``fail_at``."""

    def __init__(self, program: Any, fail_at: int = -1, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.program = program
        self.fail_at = fail_at
        self.error = error
        self.steps: list[int] = []

    def run_plain(self, tokens: Sequence[int], *rest: Any) -> Any:
        if len(self.steps) == self.fail_at:
            self.fail_at = -1
            raise self.error
        self.steps.append(len(tokens))
        return self.program.run_plain(tokens, *rest)

    def first_non_finite(self, *step: Any) -> str:
        return str(self.program.first_non_finite(*step))


def counting(model: nybble.LLM, **failure: Any) -> tuple[Session, CountingProgram]:
    program = CountingProgram(model._runner.program, **failure)
    return Session(replace(model._runner, program=program), model.context_length), program


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> nybble.LLM:
    """A model with room for several steps, and a token that ruins a sequence."""
    path = tmp_path_factory.mktemp("models") / "roomy.gguf"
    spoilt_gguf(path, "token_embd.weight", RARE, np.nan, context_length=4 * STEP_TOKENS)
    return nybble.load(path, threads=2)


def ids_without_nan(model: nybble.LLM, count: int, seed: int = 0) -> list[int]:
    return [7 if token == RARE else token for token in some_ids(model, count, seed)]


def test_only_what_is_new_is_computed(roomy: nybble.LLM) -> None:
    """In steps of at most STEP_TOKENS, or fewer where every row costs a vocabulary of logits."""
    session, program = counting(roomy)
    ids = ids_without_nan(roomy, 2 * STEP_TOKENS + 3)
    session.prefill(ids)
    session.prefill(ids)
    session.prefill([*ids[:-1], 5, 6])
    session.prefill(ids[:9])
    session.decode(5)
    session.all_logits(ids[: LOGITS_STEP_TOKENS + 1])
    assert program.steps == [STEP_TOKENS, STEP_TOKENS, 3, 1, 2, 1, 1, LOGITS_STEP_TOKENS, 1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_step_that_fails_leaves_the_steps_before(roomy: nybble.LLM, step: int, error: type[BaseException]) -> None:
    session, program = counting(roomy, fail_at=step, error=error)
    ids = ids_without_nan(roomy, 2 * STEP_TOKENS + 3)
    with pytest.raises(error):
        session.prefill(ids)
    assert session.ids == tuple(ids[: step * STEP_TOKENS])
    logits, reused = session.prefill(ids)
    assert reused == step * STEP_TOKENS
    assert sum(program.steps) == len(ids)
    np.testing.assert_array_equal(bits(logits), cold_logits(roomy, ids))


def test_an_interrupt_at_any_line_leaves_a_session_that_answers_right(
    model: nybble.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python raises KeyboardInterrupt between any two lines; the cache and the list of its tokens are two things."""
    monkeypatch.setattr(session_module, "STEP_TOKENS", 4)
    monkeypatch.setattr(session_module, "LOGITS_STEP_TOKENS", 4)
    ids, other = some_ids(model, 14), some_ids(model, 14, 1)
    # Raising on leaving the lock's block, where no signal is ever handled, would leave it locked.
    runner = replace(model._runner, lock=threading.RLock())

    def work(session: Session) -> None:
        session.prefill(ids[:9])
        session.prefill([*ids[:5], *other[:4]])
        session.decode(other[5])
        session.all_logits(other[:9])

    files = [Path(session_module.__file__)]
    whole = Session(runner, CONTEXT)
    for line in range(lines_run(lambda: work(whole), files)):
        session = Session(runner, CONTEXT)
        with raising_at_line(line, files):
            work(session)
        ids_left = session.ids
        if ids_left:
            follow_up = [*ids_left, 5]
            np.testing.assert_array_equal(bits(session.decode(5)), cold_logits(model, follow_up), f"line {line}")
        np.testing.assert_array_equal(bits(session.prefill(ids)[0]), cold_logits(model, ids), f"line {line}")


@pytest.mark.parametrize("at", [0, 3, STEP_TOKENS - 1, STEP_TOKENS, 2 * STEP_TOKENS + 1])
def test_numbers_that_are_not_finite_name_the_op_and_the_session_goes_on(roomy: nybble.LLM, at: int) -> None:
    """Whether the token that spoils everything is in the first step, the last, or is decoded."""
    ids = ids_without_nan(roomy, 2 * STEP_TOKENS + 2)
    spoilt = [*ids[:at], RARE, *ids[at + 1 :]]
    for call in (
        lambda session: session.prefill(spoilt),
        lambda session: session.all_logits(spoilt),
        lambda session: (session.prefill(ids[:at]) if at else None, session.decode(RARE)),
    ):
        session = roomy.new_session()
        with pytest.raises(NumericalError, match="first in embedding; the weights are damaged"):
            call(session)
        assert session.ids == ()
        np.testing.assert_array_equal(bits(session.decode(5)), cold_logits(roomy, [5]))
        np.testing.assert_array_equal(bits(session.prefill(ids)[0]), cold_logits(roomy, ids))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("tensor", "label"),
    [
        ("blk.0.attn_norm.weight", "layer 0 · attention norm"),
        ("blk.1.attn_v.weight", "layer 1 · attention query + key + value"),
        ("blk.1.attn_output.weight", "layer 1 · attention output"),
        ("blk.0.ffn_up.weight", "layer 0 · feed-forward gate + up"),
        ("blk.1.ffn_down.weight", "layer 1 · feed-forward down"),
        ("output_norm.weight", "output norm"),
        ("output.weight", "output head"),
    ],
)
def test_the_layer_that_breaks_is_named(tmp_path: Path, tensor: str, label: str, value: float) -> None:
    model = nybble.load(spoilt_gguf(tmp_path / "spoilt.gguf", tensor, -1, value), threads=1)
    for call in (model.logits, lambda ids: model.generate("abc", raw=True)):
        with pytest.raises(NumericalError) as caught:
            call([1, 2, 3])
        assert f"first in {label}" in str(caught.value)


def test_the_pool_lends_each_session_once(model: nybble.LLM) -> None:
    """And keeps one of those returned, not all: each may hold a full cache."""
    made: list[weakref.ref[Session]] = []

    def new_session() -> Session:
        session = model.new_session()
        made.append(weakref.ref(session))
        return session

    pool = SessionPool(new_session)
    with pool.borrowed() as first, pool.borrowed() as second:
        assert first is not second
        kept = id(first)
    del first, second
    gc.collect()
    assert len(made) == 2
    assert [id(session()) for session in made if session()] == [kept]
    with pool.borrowed() as again:
        assert id(again) == kept
    with pytest.raises(KeyError), pool.borrowed():
        raise KeyError
    with pool.borrowed() as again:
        assert id(again) == kept
    assert len(made) == 2
