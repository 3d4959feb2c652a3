"""How many processors this process may use: affinity and the CPU quota of its control groups."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .control_groups import ControlGroup, control_groups
from .kernel_files import parse_number, read_text


@dataclass(frozen=True, slots=True)
class CpuAllowance:
    """``count`` threads can run at once: the smaller of ``affinity`` (logical CPUs) and ``quota`` rounded down.

    ``quota`` is in CPUs, and None where no control group sets one.

    The quota is rounded down, to no less than 1. A step of the model ends when its slowest thread ends, and the kernel
    stops every thread of a group that used up its quota for the rest of the period (100 ms as a rule): one thread too
    many does not add a fraction of a CPU, it makes all of them wait. The fraction left over serves the Python thread.
    """

    count: int
    affinity: int
    quota: float | None


def allowed_cpus(root: Path = Path("/"), affinity: Collection[int] | None = None) -> CpuAllowance:
    """The processors this process may use. ``root`` is where /proc and /sys/fs/cgroup are looked for; ``affinity`` the
    CPUs the scheduler may use, by default those of the calling thread.
    """
    cpus = len(os.sched_getaffinity(0) if affinity is None else affinity)
    quotas = [quota for group in control_groups("cpu", root) if (quota := _quota(group)) is not None]
    quota = min(quotas, default=None)
    count = cpus if quota is None else min(cpus, max(1, int(quota)))
    return CpuAllowance(count, cpus, quota)


def _quota(group: ControlGroup) -> float | None:
    """CPUs the group may use: v2 ``cpu.max`` is "quota period" in µs, v1 has a file for each and -1 for no limit."""
    if group.version == 2:
        words = read_text(group.directory / "cpu.max").split()
        quota = parse_number(words[0]) if words else None
        period = parse_number(words[1]) if len(words) > 1 else 100_000
    else:
        quota, period = group.number("cpu.cfs_quota_us"), group.number("cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return quota / period
