"""Medians, spreads, and verdicts that noise must not reach."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nybble.bench.statistics import Summary, quiet, verdict
from tests.native.programs import sweep

SAMPLES = st.lists(st.floats(1, 1000), min_size=1, max_size=9)


def test_summary() -> None:
    assert Summary.of([3.0, 1.0, 2.0]) == Summary(2.0, 1.0, 3.0, 3)
    assert Summary.of([1.0, 2.0, 4.0, 100.0]).median == 3.0
    assert Summary.of([5.0]).spread == 0.0


def test_busy_samples_do_not_count() -> None:
    assert quiet([1.0, 2.0, 3.0], [True, False, True]) == [2.0]


def test_all_busy_samples_count() -> None:
    """Guards against rows without any number on machines that are never quiet."""
    assert quiet([1.0, 2.0], [True, True]) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([10, 11], [12, 13], "faster"),
        ([12, 13], [10, 11], "slower"),
        ([10, 11], [11, 12], "same"),  # the medians differ by as much as the samples do
        ([10, 11], [20, 40], "same"),  # new samples are all over the place
        ([1, 40], [30, 31], "same"),  # old ones were
        ([10, 10], [10, 10], "same"),
        ([10, 10], [10.1, 10.1], "faster"),
        ([10], [20, 20], "unknown"),
        ([10, 10], [20], "unknown"),
    ],
)
def test_verdicts(old: list[float], new: list[float], expected: str) -> None:
    assert verdict(Summary.of(old), Summary.of(new)) == expected


@sweep(300)
@given(SAMPLES, SAMPLES)
def test_verdicts_are_fair(old: list[float], new: list[float]) -> None:
    """Guards against a verdict that depends on which of the two runs is called old."""
    opposite = {"faster": "slower", "slower": "faster", "same": "same", "unknown": "unknown"}
    assert verdict(Summary.of(new), Summary.of(old)) == opposite[verdict(Summary.of(old), Summary.of(new))]
    assert verdict(Summary.of(old), Summary.of(old)) in ("same", "unknown")


def test_noise_is_rarely_called_a_difference() -> None:
    """Guards against verdicts from noise alone: 2000 pairs of runs of the same program, five samples each."""
    generator = random.Random(1)
    runs = [Summary.of([generator.gauss(100, 3) for _ in range(5)]) for _ in range(4000)]
    wrong = sum(verdict(old, new) != "same" for old, new in zip(runs[::2], runs[1::2], strict=True))
    assert wrong < 20
