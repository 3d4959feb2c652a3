"""What machine this is, for ``nybble probe`` and the head of every benchmark."""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from .cpus import CpuAllowance, allowed_cpus
from .kernel_files import parse_number, read_kibibytes, read_text
from .memory import MemoryAvailable, available_memory
from .topology import CPU, online_cpus


@dataclass(frozen=True, slots=True)
class Cache:
    """``count`` caches of ``bytes`` bytes each. ``kind`` is "data", "instruction" or "unified"."""

    level: int
    kind: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class MachineDescription:
    """``processor`` names every core type with its count where there are several; ``board`` is None off boards.

    ``memory_bytes`` is what the kernel manages (MemTotal), None where it does not say.
    """

    processor: str
    board: str | None
    architecture: str
    logical_cpus: int
    allowance: CpuAllowance
    memory_bytes: int | None
    memory_available: MemoryAvailable
    caches: tuple[Cache, ...]
    cpus: tuple[CPU, ...]

    @property
    def clusters(self) -> int:
        """Groups of CPUs that share more than memory."""
        return len({cpu.cluster for cpu in self.cpus})


def describe(root: Path = Path("/")) -> MachineDescription:
    """This machine. ``root`` is where /proc and /sys are looked for; what cannot be read is left out."""
    architecture = platform.machine()
    cpus = online_cpus(root)
    board = read_text(root / "proc/device-tree/model").strip("\0\n ") or None
    return MachineDescription(
        processor=_processor(cpus) or board or architecture,
        board=board,
        architecture=architecture,
        logical_cpus=os.cpu_count() or 1,
        allowance=allowed_cpus(root),
        memory_bytes=read_kibibytes(root / "proc/meminfo", "MemTotal"),
        memory_available=available_memory(root),
        caches=_caches(root),
        cpus=cpus,
    )


def _processor(cpus: tuple[CPU, ...]) -> str:
    names = Counter(cpu.name for cpu in cpus if cpu.name)
    if len(names) <= 1:
        return "".join(names)
    return " + ".join(f"{count} × {name}" for name, count in names.items())


def _caches(root: Path) -> tuple[Cache, ...]:
    """From /sys/devices/system/cpu/cpu*/cache/index*: CPUs that share a cache name the same ``shared_cpu_list``."""
    instances: set[tuple[int, str, int, str]] = set()
    for index in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        level = parse_number(read_text(index / "level"))
        size = _size(read_text(index / "size").strip())
        if level is not None and size is not None:
            kind = read_text(index / "type").strip().lower()
            # Where the kernel does not say who shares a cache, it counts as the CPU's own.
            shared = read_text(index / "shared_cpu_list").strip() or index.parent.parent.name
            instances.add((level, kind, size, shared))
    counts = Counter(instance[:3] for instance in instances)
    return tuple(Cache(*key, count) for key, count in sorted(counts.items()))


def _size(text: str) -> int | None:
    """ "32K", "8M" or plain bytes."""
    number = parse_number(text.rstrip("KMG"))
    factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    return None if number is None or number <= 0 else number * factor
