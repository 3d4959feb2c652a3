"""How busy other processes keep the CPUs while something is measured.

Standard library only: it also runs in the Pythons of other engines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

BUSY_SHARE = 0.04
"""Others who use more than this part of one CPU disturb a measurement."""

_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq and steal of the first line of /proc/stat (proc(5))."""


class NeighbourWatch:
    """Watches from when it is made. ``root`` is where /proc is; ``own_seconds`` the CPU time of this process."""

    def __init__(self, root: Path = Path("/"), own_seconds: Callable[[], float] = time.process_time) -> None:
        self._stat = root / "proc/stat"
        self._own_seconds = own_seconds
        self._tick = 1 / os.sysconf("SC_CLK_TCK")
        self._used, self._own = self._used_seconds(), own_seconds()

    def others_seconds(self) -> float:
        """CPU seconds of all other processes so far; 0 where the kernel does not say."""
        return max(0.0, self._used_seconds() - self._used - (self._own_seconds() - self._own))

    def is_busy(self, elapsed: float, others: float) -> bool:
        """Whether ``others`` CPU seconds in ``elapsed`` seconds are too many.

        The kernel counts in ticks, so that three of them say nothing.
        """
        return others > max(BUSY_SHARE * elapsed, 3 * self._tick)

    def _used_seconds(self) -> float:
        try:
            with self._stat.open(encoding="ascii") as file:
                numbers = file.readline().split()[1:]
            return self._tick * sum(int(numbers[field]) for field in _BUSY_FIELDS)
        except (OSError, ValueError, IndexError):
            return 0.0
