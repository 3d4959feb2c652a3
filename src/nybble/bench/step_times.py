"""One step taken apart: the time of each op beside the least it could take."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .. import _native
from ..formats.checkpoint import Checkpoint
from ..graph.kv_type import KVType
from ..graph.ops import Linear
from ..graph.plan import Plan
from ..inspection.weights import without_numbers
from .ours import NybbleSubject

PREFILL = 512
"""Tokens of a step of prefill, if the model's context is as long."""

CONTEXT = 64
"""Tokens that lie before a decode step, likewise."""

DECODE_REPEATS, PREFILL_REPEATS = 9, 3
"""Times a step is run; the run of the median time is taken apart."""

WRONG_PATH_RATIO = 5.0
"""An op so many times over its floor does not do slowly what it should; it does something else."""

NOTICEABLE = 0.01
"""Share of the step below which nobody cares."""


@dataclass(frozen=True, slots=True)
class OpTime:
    """``count`` ops that differ only in their layer, together. ``kernel`` computes them; "" if there is no choice.

    ``bytes`` of weights are read and ``products`` multiplied and added; ``floor_seconds`` is the least that takes on
    this machine, None where it is not told. ``cause`` says what is likely wrong with an op far over its floor, or "".
    """

    kind: str
    count: int
    kernel: str
    bytes: int
    products: int
    seconds: float
    floor_seconds: float | None
    cause: str = ""

    @property
    def ratio(self) -> float | None:
        """Its time in floors."""
        return self.seconds / self.floor_seconds if self.floor_seconds else None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step of ``rows`` tokens: its ops in the order of their times, and ``wall_seconds``.

    What ``wall_seconds`` has beyond the ops is the last of them: starting, and what lies between ops.
    """

    rows: int
    ops: tuple[OpTime, ...]
    wall_seconds: float


def measure_steps(checkpoint: Checkpoint, planned: Plan, kv: KVType, threads: _native.ThreadPool) -> list[StepTimes]:
    """Pack ``checkpoint`` as ``planned`` and take apart a decode step and a step of prefill.

    Raises :class:`~nybble.errors.NybbleError` as :func:`nybble.load` does.
    """
    subject = NybbleSubject(checkpoint, planned, threads, kv)
    ceilings = subject.ceilings()
    limit = planned.graph.context_length
    subject.start(1, min(limit, max(PREFILL, CONTEXT + 1)))
    found = []
    for rows, before, repeats in (
        (1, min(CONTEXT, limit - 1), DECODE_REPEATS),
        (min(PREFILL, limit), 0, PREFILL_REPEATS),
    ):
        subject.truncate(0)
        subject.prefill(0, _tokens(before, planned))
        runs = []
        for _ in range(repeats):
            subject.truncate(before)
            start = time.perf_counter()
            times = subject.time_ops(_tokens(rows, planned))
            runs.append((time.perf_counter() - start, times))
        wall, times = sorted(runs, key=lambda run: run[0])[repeats // 2]
        found.append(StepTimes(rows, as_kinds(_op_times(planned, times, rows, ceilings), wall), wall))
    return found


def as_kinds(ops: Iterable[OpTime], wall: float) -> tuple[OpTime, ...]:
    """``ops`` of all layers together by kind, the longest first, causes told, and what else took ``wall`` seconds."""
    kinds: dict[tuple[str, str], OpTime] = {}
    for op in ops:
        kind = without_numbers(op.kind)
        before = kinds.get((kind, op.kernel))
        kinds[kind, op.kernel] = replace(op, kind=kind) if before is None else _together(before, op)
    named = [_with_cause(op, wall) for op in sorted(kinds.values(), key=lambda op: -op.seconds)]
    rest = wall - sum(op.seconds for op in named)
    return (*named, OpTime("between ops", 1, "", 0, 0, rest, None))


def _together(first: OpTime, second: OpTime) -> OpTime:
    floors = (first.floor_seconds, second.floor_seconds)
    return replace(
        first,
        count=first.count + second.count,
        bytes=first.bytes + second.bytes,
        products=first.products + second.products,
        seconds=first.seconds + second.seconds,
        floor_seconds=None if None in floors else sum(floor or 0.0 for floor in floors),
        cause=first.cause or second.cause,
    )


def _with_cause(op: OpTime, wall: float) -> OpTime:
    """``op`` with its cause only if it is far over its floor, and matters."""
    wrong = op.ratio is not None and op.ratio > WRONG_PATH_RATIO and op.seconds > NOTICEABLE * wall
    return replace(op, cause=op.cause if wrong else "")


def _op_times(
    planned: Plan, times: Iterable[tuple[str, float]], rows: int, ceilings: Mapping[str, float]
) -> Iterable[OpTime]:
    linears = {op.label: op for op in planned.graph.ops if isinstance(op, Linear)}
    kinds = {op.label: type(op).__name__ for op in planned.graph.ops}
    for label, seconds in times:
        linear = linears.get(label)
        if linear is None:
            yield OpTime(kinds.get(label, label), 1, "", 0, 0, seconds, None)
            continue
        kernel, matrix = planned.choices[label].kernel, planned.matrices[linear.weights]
        outputs = 1 if planned.graph.buffers[linear.output].per_output else rows
        products = outputs * matrix.n * matrix.k
        peak = ceilings["int8_peak" if kernel.activations == "int8" else "fp32_peak"]
        floor = max(matrix.bytes / ceilings["read_bandwidth"], products / peak)
        yield OpTime(label, 1, kernel.name, matrix.bytes, products, seconds, floor, _likely_cause(planned, label))


def _likely_cause(planned: Plan, label: str) -> str:
    choice = planned.choices[label]
    if choice.refused:
        return "; ".join(f"{kernel} was refused: {reason}" for kernel, reason in choice.refused)
    return "other processes are busy, or more threads run than there are free CPUs"


def _tokens(count: int, planned: Plan) -> list[int]:
    return [place % planned.graph.vocabulary for place in range(count)]
