"""Which CPUs there are, of which kind, and how they are grouped.

Identifiers of SpacemiT's cores: ``mvendorid`` and ``marchid`` of ``/proc/cpuinfo`` on their boards, as published with
llama.cpp's backend for them. Groups: kernel documentation, admin-guide/cputopology.rst.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from .kernel_files import parse_number, read_text

_SPACEMIT = 0x710
_NAME_KEYS = ("model name", "cpu model", "uarch")
"""What /proc/cpuinfo calls the processor: x86, arm64 and RISC-V vendor kernels; MIPS and LoongArch; mainline RISC-V."""


class CoreKind(enum.StrEnum):
    """The kinds of core that threads are placed on with care; all others are alike to us.

    X60 is a K1's (VLEN 256; the first four have a matrix unit, and say X60 or A60), X100 a K3's eight general ones
    (VLEN 256), A100 its eight for models (VLEN 1024), which only threads that asked for them may run on.
    """

    X60 = "X60"
    X100 = "X100"
    A100 = "A100"
    OTHER = "other"


_KINDS = {
    0x8000000058000001: CoreKind.X60,
    0x8000000041000001: CoreKind.X60,
    0x8000000058000002: CoreKind.X100,
    0x8000000041000002: CoreKind.A100,
}


@dataclass(frozen=True, slots=True)
class CPU:
    """A logical CPU. ``name`` is what the kernel calls it, ``cluster`` the lowest CPU of those it shares a cluster
    with, and ``threads_of_core`` how many logical CPUs its core is.
    """

    number: int
    name: str
    kind: CoreKind
    cluster: int
    threads_of_core: int


def online_cpus(root: Path = Path("/")) -> tuple[CPU, ...]:
    """All CPUs of /proc/cpuinfo below ``root``, in order; none where it does not name them."""
    found = []
    for block in read_text(root / "proc/cpuinfo").split("\n\n"):
        lines = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in lines}
        number = parse_number(fields.get("processor", ""))
        if number is None or number < 0:
            continue
        name = next((" ".join(fields[key].split()) for key in _NAME_KEYS if fields.get(key)), "")
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        cluster = parse_cpu_list(read_text(topology / "cluster_cpus_list")) or _package(topology)
        siblings = parse_cpu_list(read_text(topology / "thread_siblings_list"))
        found.append(CPU(number, name, _kind(fields), min(cluster, default=0), max(1, len(siblings))))
    return tuple(sorted(found, key=lambda cpu: cpu.number))


def parse_cpu_list(text: str) -> set[int]:
    """The CPUs of a list as the kernel writes it, "0-3,8"; empty for anything else."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        begin, end = parse_number(first), parse_number(last or first)
        if begin is None or end is None or not 0 <= begin <= end < 1 << 20:
            return set()
        found.update(range(begin, end + 1))
    return found


def _package(topology: Path) -> set[int]:
    return parse_cpu_list(read_text(topology / "package_cpus_list"))


def _kind(fields: dict[str, str]) -> CoreKind:
    if _hexadecimal(fields.get("mvendorid")) != _SPACEMIT:
        return CoreKind.OTHER
    return _KINDS.get(_hexadecimal(fields.get("marchid")), CoreKind.OTHER)


def _hexadecimal(text: str | None) -> int:
    try:
        return int(text or "", 16)
    except ValueError:
        return -1
