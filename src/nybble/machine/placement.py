"""Which CPUs the threads of the engine run on, and why.

Most machines are best left to the scheduler. Where cores of one machine differ in what they can run, each thread is
moved to a CPU of its own before it does anything else, and finds out there what that core can do. The native
:class:`~nybble._native.ThreadPool` moves and finds out; here is only what to ask of it, and in which order.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .. import _native
from .cpus import allowed_cpus
from .staging import stage
from .topology import CPU, CoreKind, online_cpus

WIDE_VECTOR_BITS = 1024
"""VLEN of the A100 cores."""

A100_ORDER = (8, 10, 12, 14, 9, 11, 13, 15)
"""Pairs of A100 cores, (8, 9) and so on, share a matrix unit: one of each pair comes first."""

Place = tuple[int, bool, bool]
"""A CPU, whether threads have to ask for it, and whether it may have a matrix unit."""


class Start(Protocol):
    """What starts threads: :class:`_native.ThreadPool`, or a machine that is made up."""

    def __call__(self, where: int | Sequence[Place], /) -> _native.ThreadPool:
        """So many threads where the scheduler likes them, or one in each place."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A thread: its CPU (None: wherever the scheduler puts it), what that is called, and what was found there."""

    cpu: int | None
    core: str
    vector_bits: int
    matrix_unit: str
    isas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Crew:
    """The threads of the engine, why they are where they are, and why not elsewhere or more of them.

    ``tcm``: the tightly coupled memory beside their cores, or why it is not used; None where there is none.
    """

    pool: _native.ThreadPool
    members: tuple[Member, ...]
    why: str
    notes: tuple[str, ...]
    tcm: str | None = None

    @property
    def available(self) -> tuple[str, ...]:
        """All instruction sets that any thread can run, those of the first thread first."""
        return tuple(dict.fromkeys(isa for member in self.members for isa in member.isas))


@dataclass(frozen=True, slots=True)
class _Way:
    """A set of places, best first."""

    where: str
    why: str
    cpus: tuple[CPU, ...]

    def places(self, threads: int) -> list[Place]:
        return [(cpu.number, cpu.kind is CoreKind.A100, cpu.kind is not CoreKind.OTHER) for cpu in self.cpus[:threads]]


def assemble(
    threads: int | None,
    root: Path = Path("/"),
    *,
    start: Start = _native.ThreadPool,
    affinity: Collection[int] | None = None,
) -> Crew:
    """Start ``threads`` threads, by default one for each CPU this process may use.

    Where threads are placed there are no more than places. ``root`` is where /proc and /sys are looked for;
    ``affinity`` are the CPUs of the scheduler, by default those of the calling thread.
    """
    allowed = os.sched_getaffinity(0) if affinity is None else affinity
    wanted = allowed_cpus(root, allowed).count if threads is None else threads
    notes: list[str] = []
    for way in _ways(online_cpus(root), allowed):
        places = way.places(wanted)
        pool = start(places)
        problem = _problem(way.cpus, pool.arrivals)
        if problem is None:
            if threads is not None and threads > len(places):
                notes.append(f"{threads} threads were asked for; {way.where} are {len(places)}")
            members = tuple(map(_member, pool.arrivals, way.cpus))
            on_a100 = all(cpu.kind is CoreKind.A100 for cpu in way.cpus)
            tcm = stage(pool, [cpu.number for cpu in way.cpus[: len(members)]]) if on_a100 else None
            return Crew(pool, members, way.why, tuple(notes), tcm)
        notes.append(f"not on {way.where}: {problem}")
    pool = start(wanted)
    return Crew(pool, tuple(map(_member, pool.arrivals)), "wherever the scheduler puts them", tuple(notes))


def _ways(cpus: Sequence[CPU], allowed: Collection[int]) -> Iterator[_Way]:
    """The ways to place threads on such a machine, best first; none where the scheduler knows best."""
    wide = [cpu for cpu in cpus if cpu.kind is CoreKind.A100]
    if wide:
        # They are in nobody's affinity: whether this process may have them shows when it asks.
        order = {number: place for place, number in enumerate(A100_ORDER)}
        wide.sort(key=lambda cpu: order.get(cpu.number, cpu.number))
        why = "one on each A100 core, those of a pair, which share a matrix unit, last"
        yield _Way("A100 cores", why, tuple(wide))
    for kind, why in (
        (CoreKind.X100, "one on each X100 core"),
        (CoreKind.X60, "one on each X60 core, as some of these have a matrix unit"),
    ):
        of_kind = [cpu for cpu in cpus if cpu.kind is kind and cpu.number in allowed]
        if of_kind:
            of_kind.sort(key=lambda cpu: (cpu.cluster, cpu.number))
            yield _Way(f"{kind.value} cores", why, tuple(of_kind))


def _problem(cpus: Sequence[CPU], arrivals: Sequence[_native.Arrival]) -> str | None:
    for cpu, arrival in zip(cpus, arrivals, strict=False):
        if arrival.problem:
            return arrival.problem
        if cpu.kind is CoreKind.A100 and arrival.vector_bits != WIDE_VECTOR_BITS:
            return f"CPU {cpu.number} has VLEN {arrival.vector_bits}, expected {WIDE_VECTOR_BITS}"
    return None


def _member(arrival: _native.Arrival, cpu: CPU | None = None) -> Member:
    found = (arrival.vector_bits, arrival.matrix_unit, tuple(arrival.isas))
    return Member(None, "", *found) if cpu is None else Member(cpu.number, cpu.name or cpu.kind.value, *found)
