"""The description of a machine, from recorded shapes of /proc/cpuinfo and /sys written by hand."""

import platform

import pytest

from nybble.machine.description import Cache, describe

X86 = "processor\t: {}\nvendor_id\t: X\nmodel name\t: Some  CPU @ 2.0GHz\nflags\t: fpu\n\n"
RISCV = "processor\t: {}\nhart\t: {}\nisa\t: rv64imafdcv\nmmu\t: sv39\nuarch\t: vendor,{}\n\n"
ARM = "processor\t: {}\nBogoMIPS\t: 108.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n\n"


@pytest.mark.parametrize(
    ("cpuinfo", "board", "processor"),
    [
        (X86.format(0) + X86.format(1), "", "Some CPU @ 2.0GHz"),
        (RISCV.format(0, 0, "a") * 8, "", "vendor,a"),
        (RISCV.format(0, 0, "a") * 8 + RISCV.format(8, 8, "b") * 4, "", "8 × vendor,a + 4 × vendor,b"),
        (ARM.format(0) * 4, "Some Board\0", "Some Board"),
        (ARM.format(0) * 4, "", platform.machine()),
        ("", "", platform.machine()),
        ("::\nmodel name\nmodel name\t:\n", "", platform.machine()),
    ],
)
def test_processor_name(fake_root, cpuinfo, board, processor):
    """Guards each family's spelling, chips with two core types, and processors that have no name at all."""
    files = {"proc/cpuinfo": cpuinfo} | ({"proc/device-tree/model": board} if board else {})
    description = describe(fake_root(files))
    assert description.processor == processor
    assert description.board == (board.strip("\0") or None)


def test_caches_are_counted_once_each(fake_root):
    """Guards against counting a shared cache once per CPU, against units, and against CPUs that hide their caches."""
    files = {}
    for cpu in range(4):
        index = f"sys/devices/system/cpu/cpu{cpu}/cache/index"
        for number, (level, kind, size, shared) in enumerate(
            [(1, "Data", "32K", str(cpu)), (1, "Instruction", "32K", str(cpu)), (2, "Unified", "1M", f"{cpu // 2}")]
        ):
            files |= {f"{index}{number}/level": f"{level}\n", f"{index}{number}/type": f"{kind}\n"}
            files |= {f"{index}{number}/size": f"{size}\n", f"{index}{number}/shared_cpu_list": f"{shared}\n"}
        files |= {f"{index}7/level": "3\n", f"{index}7/size": "\n"}
    files |= {"sys/devices/system/cpu/cpufreq/cache/index0/level": "1\n", "proc/meminfo": "MemTotal:  2048 kB\n"}
    description = describe(fake_root(files))
    assert description.caches == (
        Cache(1, "data", 32 * 2**10, 4),
        Cache(1, "instruction", 32 * 2**10, 4),
        Cache(2, "unified", 2**20, 2),
    )
    assert description.memory_bytes == 2 * 2**20


def test_this_machine():
    """Guards against a crash on the machine at hand, and contradictions within one description."""
    description = describe()
    assert description.processor
    assert description.architecture == platform.machine()
    assert 1 <= description.allowance.count <= description.allowance.affinity <= description.logical_cpus
    assert description.memory_bytes is None or 0 < description.memory_available.bytes <= description.memory_bytes
