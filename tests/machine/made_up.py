"""Machines that are made up: what /proc and /sys say, and what threads find that are sent to their CPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nybble.machine.placement import Place

EINVAL = "Invalid argument"
X60, X100, A100 = 0x8000000058000001, 0x8000000058000002, 0x8000000041000002
RISCV = "processor\t: {cpu}\nhart\t\t: {cpu}\nmodel name\t: {name}\nisa\t\t: rv64imafdcv_zvfh\nmmu\t\t: sv39\n"
VENDOR = "mvendorid\t: {vendor:#x}\nmarchid\t\t: {arch:#x}\nmimpid\t\t: 0x1000000049772200\n"
X86 = "processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: {name}\ncore id\t\t: 0\n"


@dataclass(frozen=True, slots=True)
class MadeUpCPU:
    """``siblings`` are the CPUs of its core, ``cluster`` those of its cluster, as lists of the kernel."""

    text: str
    cluster: str
    siblings: str
    vector_bits: int = 0
    matrix_unit: str = "none"
    isas: tuple[str, ...] = ("rvv256", "rvv128", "portable")
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class Arrival:
    """As :class:`nybble._native.Arrival`."""

    cpu: int = -1
    vector_bits: int = 0
    matrix_unit: str = "none"
    isas: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Pool:
    """As :class:`nybble._native.ThreadPool`."""

    arrivals: list[Arrival]
    tcm_problem: str = ""
    staged: list[tuple[str, list[int]]] = field(default_factory=list)

    @property
    def staging_bytes(self) -> int:
        return 384 << 10 if self.staged and not self.tcm_problem else 0

    def stage(self, library: str, blocks: Sequence[int]) -> str:
        self.staged.append((library, list(blocks)))
        return self.tcm_problem

    def staging_refusal(self, n: int, k: int, bytes: int) -> str:
        return "" if k > 256 else f"{k} features"

    @property
    def size(self) -> int:
        return len(self.arrivals)


@dataclass
class Machine:
    """``affinity`` is the scheduler's, ``outside`` are CPUs that the control group of this process lacks, and
    ``gate_problem`` is why nobody may ask for gated cores.
    """

    cpus: Mapping[int, MadeUpCPU]
    affinity: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    gate_problem: str = ""
    tcm_problem: str = "no such library"
    starts: list[int | Sequence[Place]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.affinity = self.affinity or {cpu for cpu, about in self.cpus.items() if not about.is_gated}

    def files(self) -> dict[str, str]:
        """For ``fake_root``."""
        files = {"proc/cpuinfo": "\n".join(about.text.format(cpu=cpu) for cpu, about in self.cpus.items()) + "\n"}
        for cpu, about in self.cpus.items():
            topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
            files[f"{topology}/cluster_cpus_list"] = f"{about.cluster}\n"
            files[f"{topology}/thread_siblings_list"] = f"{about.siblings}\n"
        return files

    def start(self, where: int | Sequence[Place], /) -> Pool:
        """As the constructor of :class:`nybble._native.ThreadPool`."""
        self.starts.append(where)
        if isinstance(where, int):
            about = self.cpus[min(self.affinity)]
            return Pool([Arrival(vector_bits=about.vector_bits, isas=about.isas)] * where)
        return Pool([self._arrival(*place) for place in where], self.tcm_problem)

    def _arrival(self, number: int, asks: bool, tries: bool) -> Arrival:
        if asks and self.gate_problem:
            return Arrival(problem=self.gate_problem)
        about = self.cpus.get(number)
        if about is None or number in self.outside or (about.is_gated and not asks):
            return Arrival(problem=f"CPU {number} does not take a thread: {EINVAL}")
        if not tries or about.matrix_unit == "none":
            return Arrival(number, about.vector_bits, isas=about.isas)
        return Arrival(number, about.vector_bits, about.matrix_unit, (about.matrix_unit, *about.isas))


def _riscv(name: str, vendor: int, arch: int) -> str:
    return RISCV.replace("{name}", name) + VENDOR.format(vendor=vendor, arch=arch)


def k1(**changes: object) -> Machine:
    """Eight X60 that describe themselves alike; the first cluster has matrix units."""
    text = _riscv("Spacemit(R) X60", 0x710, X60)
    cpus = {
        cpu: MadeUpCPU(text, "0-3" if cpu < 4 else "4-7", str(cpu), 256, "ime1" if cpu < 4 else "none")
        for cpu in range(8)
    }
    return Machine(cpus, **changes)  # type: ignore[arg-type]


def k3(vector_bits: int = 1024, **changes: object) -> Machine:
    """Eight X100, and eight A100 that threads have to ask for."""
    general, wide = _riscv("Spacemit(R) X100", 0x710, X100), _riscv("Spacemit(R) A100", 0x710, A100)
    isas = ("rvv512", "rvv256", "rvv128", "portable")
    cpus = {cpu: MadeUpCPU(general, f"{cpu & 4}-{cpu | 3}", str(cpu), 256, "ime1") for cpu in range(8)}
    cpus |= {
        cpu: MadeUpCPU(wide, f"{cpu & ~3}-{cpu | 3}", str(cpu), vector_bits, "ime2", isas, is_gated=True)
        for cpu in range(8, 16)
    }
    return Machine(cpus, **changes)  # type: ignore[arg-type]


def plain_board(**changes: object) -> Machine:
    """Four cores of another vendor, whose marchid is a number of SpacemiT's by chance."""
    text = _riscv("Other Core", 0x489, X60)
    return Machine({cpu: MadeUpCPU(text, "0-3", str(cpu), 256, "ime1") for cpu in range(4)}, **changes)  # type: ignore[arg-type]


def x86(threads_of_core: int, **changes: object) -> Machine:
    """Four cores."""
    text, isas = X86.replace("{name}", "Some CPU"), ("avx2", "portable")
    cpus = {}
    for cpu in range(4 * threads_of_core):
        siblings = ",".join(str(cpu % 4 + 4 * thread) for thread in range(threads_of_core))
        cpus[cpu] = MadeUpCPU(text, "", siblings, isas=isas)
    return Machine(cpus, **changes)  # type: ignore[arg-type]
