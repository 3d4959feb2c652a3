"""Rows beside older ones, and engines beside one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .job import OURS
from .row import Row
from .statistics import verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row and the old one of the same test; ``change`` is new over old, less one."""

    old: Row
    new: Row
    change: float
    verdict: str


def compare(old: Sequence[Row], new: Sequence[Row]) -> list[Comparison]:
    """Those of ``new`` that were measured in ``old`` too: the same engine, test, threads, depth and batch."""
    known = {row.key: row for row in old}
    pairs = [(known[row.key], row) for row in new if row.key in known]
    return [
        Comparison(
            before, now, now.tokens_per_second / before.tokens_per_second - 1, verdict(before.summary, now.summary)
        )
        for before, now in pairs
    ]


@dataclass(frozen=True, slots=True)
class Rival:
    """Our row and another engine's of the same test; ``ratio`` is ours over theirs."""

    ours: Row
    theirs: Row
    ratio: float


def rivals(rows: Sequence[Row]) -> list[Rival]:
    """Every row of another engine beside ours of the same test, in the order of ``rows``."""
    own = {row.work_key: row for row in rows if row.engine == OURS}
    return [
        Rival(own[row.work_key], row, own[row.work_key].tokens_per_second / row.tokens_per_second)
        for row in rows
        if row.engine != OURS and row.work_key in own
    ]
