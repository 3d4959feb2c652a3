"""How much memory this process may still take, who says so, and how much it took at its peak."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .control_groups import ControlGroup, control_groups
from .kernel_files import read_kibibytes

# Version 1 spells "no limit" as the largest page-aligned number; no machine has an exbibyte.
_NO_LIMIT = 2**60


@dataclass(frozen=True, slots=True)
class MemoryAvailable:
    """Bytes that can still be allocated, and the limit that is met first, in words a person can act on."""

    bytes: int
    limited_by: str


def available_memory(root: Path = Path("/")) -> MemoryAvailable:
    """The smallest of free memory, the control groups' limits and the process's own limits (ulimit).

    ``root`` is where /proc and /sys/fs/cgroup are looked for.
    """
    limits = [_free_memory(root), *_group_limits(root), *_process_limits(root)]
    return min(limits, key=lambda limit: limit.bytes)


def peak_resident_bytes(root: Path = Path("/")) -> int:
    """The most memory this process had in use at once: VmHWM of /proc/self/status."""
    peak = read_kibibytes(root / "proc/self/status", "VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if peak is None else peak


def _free_memory(root: Path) -> MemoryAvailable:
    available = read_kibibytes(root / "proc/meminfo", "MemAvailable")
    if available is None:  # no /proc: free pages alone, which is too careful rather than too bold
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MemoryAvailable(available, "free memory of the machine")


def _group_limits(root: Path) -> Iterator[MemoryAvailable]:
    for group in control_groups("memory", root):
        if group.version == 2:
            used, reclaimable = group.number("memory.current"), group.statistic("memory.stat", "inactive_file")
            # memory.high does not refuse, but past it the kernel slows the group down to a crawl.
            names = ["memory.max", "memory.high"]
        else:
            used = group.number("memory.usage_in_bytes")
            reclaimable = group.statistic("memory.stat", "total_inactive_file")
            names = ["memory.limit_in_bytes"]
        for name in names:
            limit = group.number(name)
            if limit is not None and limit < _NO_LIMIT:
                # Cached file pages count as used, yet the kernel drops them first.
                left = limit - max(0, (used or 0) - (reclaimable or 0))
                yield MemoryAvailable(max(0, left), f"the control group limit {_shown(group, name, root)}")


def _shown(group: ControlGroup, name: str, root: Path) -> str:
    return "/" + (group.directory / name).relative_to(root).as_posix()


def _process_limits(root: Path) -> Iterator[MemoryAvailable]:
    status = root / "proc/self/status"
    for kind, used, words in (
        (resource.RLIMIT_AS, "VmSize", "the address space limit of this process (ulimit -v)"),
        (resource.RLIMIT_DATA, "VmData", "the data segment limit of this process (ulimit -d)"),
    ):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            yield MemoryAvailable(max(0, limit - (read_kibibytes(status, used) or 0)), words)
