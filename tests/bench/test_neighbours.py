"""What others used of the CPUs, from a made-up /proc/stat."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nybble.bench.neighbours import NeighbourWatch

TICK = 1 / os.sysconf("SC_CLK_TCK")
FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")


class Machine:
    """A /proc/stat to change, and the CPU time of the process that watches."""

    def __init__(self, root: Path) -> None:
        self.root, self.own = root, 5.0
        self.ticks = dict.fromkeys(FIELDS, 1000)
        (root / "proc").mkdir()
        self.add()

    def add(self, **ticks: int) -> None:
        for name, count in ticks.items():
            self.ticks[name] += count
        numbers = " ".join(map(str, self.ticks.values()))
        (self.root / "proc/stat").write_text(f"cpu  {numbers}\ncpu0 {numbers}\nintr 1 2 3\n")

    def watch(self) -> NeighbourWatch:
        return NeighbourWatch(self.root, lambda: self.own)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("field", ["user", "nice", "system", "irq", "softirq", "steal"])
def test_work_of_others(machine: Machine, field: str) -> None:
    watch = machine.watch()
    machine.add(**{field: 50})
    assert watch.others_seconds() == pytest.approx(50 * TICK)


@pytest.mark.parametrize("field", ["idle", "iowait", "guest", "guest_nice"])
def test_no_work(machine: Machine, field: str) -> None:
    """Guards against idle CPUs that look busy; guests are part of user already."""
    watch = machine.watch()
    machine.add(**{field: 50})
    assert watch.others_seconds() == 0


def test_own_work_is_not_that_of_others(machine: Machine) -> None:
    watch = machine.watch()
    machine.add(user=100)
    machine.own += 70 * TICK
    assert watch.others_seconds() == pytest.approx(30 * TICK)
    machine.own += 40 * TICK
    assert watch.others_seconds() == 0


def test_busy() -> None:
    """Guards against single ticks that make a short sample look disturbed."""
    watch = NeighbourWatch()
    assert watch.is_busy(10.0, 0.41)
    assert not watch.is_busy(10.0, 0.39)
    assert not watch.is_busy(0.01, 3 * TICK)
    assert watch.is_busy(0.01, 4 * TICK)


@pytest.mark.parametrize("text", [None, "", "cpu", "cpu 1 2", "cpu a b c d e f g h", "\xff"])
def test_no_statistics(machine: Machine, text: str | None) -> None:
    """Guards against benchmarks that fail in containers without /proc/stat."""
    stat = machine.root / "proc/stat"
    stat.unlink()
    if text is not None:
        stat.write_text(text, encoding="latin-1")
    assert machine.watch().others_seconds() == 0


def test_this_machine() -> None:
    assert NeighbourWatch().others_seconds() >= 0
