"""How samples are taken: what is timed, what is not, and in which order."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nybble.bench import subject
from nybble.bench.cases import Case
from nybble.bench.subject import SteppingSubject, take_samples


class Recorder(SteppingSubject):
    """Writes down what it is told; a prefill takes a second, and a step of decoding ten."""

    facts: Mapping[str, Any] = {}

    def __init__(self) -> None:
        super().__init__(1000)
        self.now = 0.0
        self.calls: list[tuple[Any, ...]] = []
        self.lengths: list[int] = []
        self.tokens: list[int] = []

    def start(self, sequences: int, capacity: int) -> None:
        self.calls.append(("start", sequences, capacity))
        self.lengths, self.capacity = [0] * sequences, capacity

    def truncate(self, length: int) -> None:
        assert all(length <= known for known in self.lengths)
        self.lengths = [length] * len(self.lengths)
        self.calls.append(("truncate", length))

    def prefill(self, sequence: int, tokens: Sequence[int]) -> None:
        self._append(sequence, tokens)
        self.calls.append(("prefill", sequence, len(tokens)))
        self.now += 1

    def decode(self, tokens: Sequence[int]) -> None:
        for sequence, token in enumerate(tokens):
            self._append(sequence, [token])
        self.calls.append(("decode", len(tokens)))
        self.now += 10

    def _append(self, sequence: int, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.lengths[sequence] += len(tokens)
        assert self.lengths[sequence] <= self.capacity


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    return made


def events(recorder: Recorder, cases: Sequence[Case], repeats: int = 2) -> list[Mapping[str, Any]]:
    emitted: list[Mapping[str, Any]] = []
    take_samples(recorder, cases, repeats, emitted.append)
    return emitted


def test_prompt(recorder: Recorder) -> None:
    assert events(recorder, [Case(5, 0)])[-1]["seconds"] == [1, 1]
    sample = [("truncate", 0), ("prefill", 0, 5)]
    assert recorder.calls == [("start", 1, 5), *sample * 3]  # a warm-up first


def test_generation_behind_a_depth(recorder: Recorder) -> None:
    """Guards against depths that are timed, or computed again for each sample, or grow with each."""
    found = events(recorder, [Case(0, 12, depth=7)])
    assert found[-1]["seconds"] == [120, 120]
    calls = [("start", 1, 19), ("prefill", 0, 7), ("truncate", 7), *[("decode", 1)] * subject.WARM_UP_TOKENS]
    assert recorder.calls == calls + [("truncate", 7), *[("decode", 1)] * 12] * 2


def test_batch(recorder: Recorder) -> None:
    """Guards against batches whose sequences have no depth, or that decode one after another."""
    events(recorder, [Case(0, 2, depth=3, batch=4)])
    depth = [("prefill", sequence, 3) for sequence in range(4)]
    assert recorder.calls == [("start", 4, 5), *depth, *[("truncate", 3), ("decode", 4), ("decode", 4)] * 3]


def test_prompt_and_generation(recorder: Recorder) -> None:
    assert events(recorder, [Case(5, 2)])[-1]["seconds"] == [21, 21]


def test_tokens_are_random_ids(recorder: Recorder) -> None:
    """Guards against tokens outside the vocabulary, and against one and the same token."""
    events(recorder, [Case(100, 0)])
    assert set(recorder.tokens) <= set(range(1000)) and len(set(recorder.tokens)) > 100


def test_events(recorder: Recorder) -> None:
    """Ceilings are measured between cases: those before the first, after each."""
    ceilings = iter([{"read_bandwidth": float(number)} for number in range(3)])
    recorder.ceilings = lambda: next(ceilings)  # type: ignore[method-assign]
    recorder.refusal = lambda case: "no" if case.prompt == 9 else None  # type: ignore[method-assign]
    found = events(recorder, [Case(1, 0), Case(9, 0), Case(2, 0)])
    names = [(event["event"], event["case"]) for event in found]
    assert names == [*[("sample", 0)] * 2, ("measured", 0), ("skipped", 1), *[("sample", 2)] * 2, ("measured", 2)]
    assert found[2]["ceilings"] == [{"read_bandwidth": 0.0}, {"read_bandwidth": 1.0}]
    assert found[-1]["ceilings"] == [{"read_bandwidth": 1.0}, {"read_bandwidth": 2.0}]
    assert found[3]["why"] == "no"


def test_no_ceilings(recorder: Recorder) -> None:
    assert events(recorder, [Case(1, 0)])[-1]["ceilings"] == []


class Neighbours:
    """Others that use a tenth of a second of CPU in each sample, too little to be seen in one."""

    seen = 0.0

    def __init__(self) -> None:
        self.before = Neighbours.seen

    def others_seconds(self) -> float:
        Neighbours.seen += 0.1
        return Neighbours.seen - self.before

    def is_busy(self, elapsed: float, others: float) -> bool:
        return others > 0.15


def test_short_samples_are_judged_together(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against samples too short for the kernel's ticks that all look quiet."""
    monkeypatch.setattr(subject, "NeighbourWatch", Neighbours)
    assert events(recorder, [Case(1, 0)], repeats=1)[-1]["busy"] == [True]
    monkeypatch.setattr(Neighbours, "is_busy", lambda watch, elapsed, others: False)
    assert events(recorder, [Case(1, 0)])[-1]["busy"] == [False, False]
