"""Whole benchmarks: who is measured when, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nybble.bench import benchmark as module
from nybble.bench.benchmark import Contender, Settings, benchmark
from nybble.bench.cases import Case
from nybble.bench.job import Job, RandomModel, WeightFormat
from nybble.bench.processes import Outcome
from tests.bench.made_up import FACTS, measured

OURS, THEIRS = Contender("nybble", "/m.gguf", "m"), Contender("llama-cpp", "/m.gguf", "m", "/python")
CASES = Case(8, 0), Case(0, 4)


class Workers:
    """Stands in for processes: every sample of the n-th takes n seconds. ``refused`` are cases nobody measures."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.pythons: list[str | None] = []
        self.refused: dict[str, str] = {}

    def run(self, job: Job, python: str | None, on_sample: Callable[[], None]) -> Outcome:
        self.jobs.append(job)
        self.pythons.append(python)
        outcome = Outcome(FACTS if job.engine == "nybble" else {"version": "9"})
        for index, case in enumerate(job.cases):
            for _ in range(job.repeats):
                on_sample()
            if job.engine != "nybble" and case.test in self.refused:
                outcome.skipped[index] = self.refused[case.test]
            else:
                outcome.measured[index] = measured([len(self.jobs)] * job.repeats)
        return outcome


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    made = Workers()
    monkeypatch.setattr(module, "run_worker", made.run)
    return made


def settings(*contenders: Contender, random: RandomModel | None = None) -> Settings:
    return Settings(contenders or (OURS, THEIRS), random, CASES, (1, 2), repeats=3, processes=2, accuracy="int8")


def test_engines_take_turns(workers: Workers) -> None:
    """Guards against one engine after the other, where the first gets the quiet hour."""
    benchmark(settings())
    turns = [(job.engine, job.threads) for job in workers.jobs]
    assert turns == [(engine, threads) for threads in (1, 2) for engine in ("nybble", "llama-cpp")] * 2
    assert workers.pythons == [None, "/python"] * 4
    assert {job.cases for job in workers.jobs} == {CASES}


def test_rows(workers: Workers) -> None:
    """Rows of the same test stand together, with the samples of all processes."""
    report = benchmark(settings())
    assert [(row.threads, row.test, row.engine) for row in report.rows] == [
        (threads, test, engine) for threads in (1, 2) for test in ("pp8", "tg4") for engine in ("nybble", "llama-cpp")
    ]
    first, second = report.rows[:2]
    assert (first.processes, first.samples) == (2, (8, 8, 8, 8 / 5, 8 / 5, 8 / 5))
    assert (first.accuracy, second.accuracy) == ("int8", None)
    assert (first.model, first.isa, second.version) == ("m", "portable", "9")
    assert report.notes == []


def test_progress(workers: Workers) -> None:
    calls: list[tuple[int, int, str]] = []
    benchmark(settings(), lambda *call: calls.append(call))
    total = 2 * 2 * 2 * 2 * 3
    assert calls[0] == (0, total, "nybble, 1 thread") and calls[-1] == (total, total, "llama-cpp, 2 threads")
    assert sorted({done for done, _, _ in calls}) == list(range(total + 1))


def test_what_an_engine_cannot_do(workers: Workers) -> None:
    """Guards against a row of nothing, or silence about it."""
    workers.refused = {"tg4": "it cannot be told what to generate"}
    report = benchmark(settings())
    assert [row.test for row in report.rows if row.engine == "llama-cpp"] == ["pp8", "pp8"]
    assert report.notes == ["llama-cpp was not measured at tg4: it cannot be told what to generate"]


def test_random_models(workers: Workers) -> None:
    """Ours is made in memory; another engine reads a file of the same shape."""
    random = RandomModel("qwen2.5-0.5b", WeightFormat(4, 32))
    benchmark(settings(Contender("nybble", "", random.name), THEIRS, random=random))
    assert [(job.model, job.random) for job in workers.jobs[:2]] == [("", random), ("/m.gguf", None)]
