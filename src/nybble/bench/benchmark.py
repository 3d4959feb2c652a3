"""A whole benchmark: engines, threads and processes interleaved, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .cases import Case
from .job import OURS, Job, Operation, RandomModel
from .processes import Outcome, run_worker
from .provenance import provenance
from .row import Row, build_row

Progress = Callable[[int, int, str], None]
"""Called with the samples taken, their total, and what is being measured."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine to measure: its ``model`` (a path, or empty for the random one), what rows call that, and the Python
    the engine lives in (None: this one)."""

    engine: str
    model: str
    name: str
    python: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What to measure."""

    contenders: tuple[Contender, ...]
    random: RandomModel | None
    cases: tuple[Case, ...]
    threads: tuple[int, ...]
    repeats: int
    processes: int
    accuracy: str
    operation: Operation | None = None
    kv: str = "fp16"


@dataclass(slots=True)
class Report:
    """The rows, by threads and case, engines side by side; ``notes`` say what was left out and why."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def benchmark(settings: Settings, progress: Progress = lambda done, total, what: None) -> Report:
    """Measure everything. Each number of threads of each engine gets fresh processes, one after another in turn, so
    that what changes in the meantime changes for all. Raises :class:`~nybble.errors.NybbleError`.
    """
    total = settings.processes * len(settings.threads) * len(settings.contenders) * len(settings.cases)
    total *= settings.repeats
    done = 0
    outcomes: dict[tuple[str, int], list[Outcome]] = {}
    for _ in range(settings.processes):
        for threads in settings.threads:
            for contender in settings.contenders:
                what = f"{contender.engine}, {threads} {'thread' if threads == 1 else 'threads'}"

                def count(what: str = what) -> None:
                    nonlocal done
                    done += 1
                    progress(done, total, what)

                progress(done, total, what)
                outcome = run_worker(_job(settings, contender, threads), contender.python, count)
                outcomes.setdefault((contender.engine, threads), []).append(outcome)
    return _report(settings, outcomes)


def _job(settings: Settings, contender: Contender, threads: int) -> Job:
    return Job(
        engine=contender.engine,
        model=contender.model,
        random=None if contender.model else settings.random,
        threads=threads,
        accuracy=settings.accuracy,
        cases=settings.cases,
        repeats=settings.repeats,
        operation=settings.operation,
        kv=settings.kv,
    )


def _report(settings: Settings, outcomes: Mapping[tuple[str, int], Sequence[Outcome]]) -> Report:
    report = Report()
    origin = provenance()
    for threads in settings.threads:
        for index, case in enumerate(settings.cases):
            for contender in settings.contenders:
                of_engine = outcomes[contender.engine, threads]
                measured = [outcome.measured[index] for outcome in of_engine if index in outcome.measured]
                if not measured:
                    note = f"{contender.engine} was not measured at {case.test}: {of_engine[0].skipped[index]}"
                    report.notes += [note] if note not in report.notes else []
                    continue
                accuracy = settings.accuracy if contender.engine == OURS else None
                facts = of_engine[0].facts
                report.rows.append(
                    build_row(contender.engine, contender.name, accuracy, threads, case, measured, facts, origin)
                )
    return report
