"""What samples say, and when two sets of them differ."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """The median of ``count`` samples, and the smallest and largest of them."""

    median: float
    minimum: float
    maximum: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """The summary of at least one sample."""
        return cls(statistics.median(samples), min(samples), max(samples), len(samples))

    @property
    def spread(self) -> float:
        """From the smallest sample to the largest."""
        return self.maximum - self.minimum


def quiet(samples: Sequence[float], busy: Sequence[bool]) -> list[float]:
    """The samples during which no other process was busy; all of them if there are none such."""
    undisturbed = [sample for sample, disturbed in zip(samples, busy, strict=True) if not disturbed]
    return undisturbed or list(samples)


def verdict(old: Summary, new: Summary) -> str:
    """``faster`` or ``slower`` if the medians differ by more than the samples of either spread, else ``same``.

    Single samples have no spread to compare with: ``unknown``.
    """
    if min(old.count, new.count) < 2:
        return "unknown"
    if abs(new.median - old.median) <= max(old.spread, new.spread):
        return "same"
    return "faster" if new.median > old.median else "slower"
