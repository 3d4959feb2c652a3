"""Rows beside older ones, and beside those of other engines."""

from __future__ import annotations

import pytest

from nybble.bench.cases import Case
from nybble.bench.compare import compare, rivals
from tests.bench.made_up import row


def test_rows_of_the_same_test_are_compared() -> None:
    """Guards against a prompt compared with generation, or with another thread count, depth or engine."""
    old = [row(Case(0, 10), [10.0, 11.0]), row(Case(0, 10, 5), [1.0, 1.0]), row(Case(0, 10), [7.0, 7.0], engine="mnn")]
    new = [
        row(Case(0, 10), [20.0, 21.0]),
        row(Case(10, 0), [1.0, 1.0]),
        row(Case(0, 10, 5), [1.0, 1.0]),
        row(Case(0, 10), [7.0, 7.0], threads=1),
        row(Case(0, 10), [3.0, 3.0], engine="mnn"),
    ]
    found = compare(old, new)
    assert [(one.new, one.verdict) for one in found] == [(new[0], "faster"), (new[2], "same"), (new[4], "slower")]
    assert found[0].change == pytest.approx(20.5 / 10.5 - 1)


def test_busy_samples_decide_nothing() -> None:
    """Guards against a verdict from samples that a neighbour disturbed."""
    old = [row(Case(0, 10), [10.0, 10.0, 10.0])]
    new = [row(Case(0, 10), [10.0, 10.0, 5.0], busy=(False, False, True))]
    assert [found.verdict for found in compare(old, new)] == ["same"]


def test_rivals() -> None:
    rows = [
        row(Case(0, 10), [10.0, 30.0]),
        row(Case(0, 10), [5.0], engine="llama-cpp"),
        row(Case(0, 10), [40.0], engine="mnn"),
        row(Case(5, 0), [1.0], engine="mnn"),
        row(Case(0, 10), [1.0], engine="mnn", threads=1),
    ]
    assert [(found.theirs, found.ratio) for found in rivals(rows)] == [(rows[1], 4.0), (rows[2], 0.5)]
    assert all(found.ours is rows[0] for found in rivals(rows))
