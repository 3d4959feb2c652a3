"""Available memory: every kind of limit, alone and together, and the peak of this process."""

import resource
import subprocess
import sys

import pytest

from nybble.machine.memory import available_memory, peak_resident_bytes

GIB = 2**30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"


@pytest.fixture(autouse=True)
def no_process_limits(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def unit(**files):
    return {f"system.slice/nybble.service/memory.{name}": text for name, text in files.items()}


def with_meminfo(root):
    (root / "proc/meminfo").write_text(MEMINFO)
    return root


def test_free_memory_without_limits(version_2):
    """Guards the unit (kB are KiB) and the field: MemAvailable, not MemFree."""
    available = available_memory(with_meminfo(version_2(unit(max="max\n", high="max\n"))))
    assert (available.bytes, available.limited_by) == (8 * GIB, "free memory of the machine")


@pytest.mark.parametrize(
    ("files", "left", "by"),
    [
        ({"max": f"{2 * GIB}\n", "current": f"{GIB}\n"}, GIB, "memory.max"),
        ({"max": f"{2 * GIB}\n", "high": f"{GIB}\n", "current": "0\n"}, GIB, "memory.high"),
        (
            {"max": f"{2 * GIB}", "current": f"{GIB}", "stat": f"anon 7\ninactive_file {GIB // 2}\n"},
            GIB * 3 // 2,
            "memory.max",
        ),
        ({"max": f"{2 * GIB}", "current": f"{GIB}", "stat": f"inactive_file {3 * GIB}\n"}, 2 * GIB, "memory.max"),
        ({"max": f"{GIB}", "current": f"{2 * GIB}"}, 0, "memory.max"),
        ({"max": f"{GIB}"}, GIB, "memory.max"),
        ({"max": f"{GIB}", "current": "garbage", "stat": "inactive_file\nx y z\n"}, GIB, "memory.max"),
    ],
)
def test_version_2_limits(version_2, files, left, by):
    """Guards limit, high mark, use, and reclaimable page cache: counted used, yet free for the taking."""
    available = available_memory(with_meminfo(version_2(unit(**files))))
    assert available.bytes == left
    assert available.limited_by == f"the control group limit /sys/fs/cgroup/system.slice/nybble.service/{by}"


def test_an_ancestor_can_be_the_tightest(version_2):
    """Guards the walk to the root: the slice has less left than the unit in it."""
    slice_files = {"system.slice/memory.max": f"{3 * GIB}", "system.slice/memory.current": f"{2 * GIB}"}
    available = available_memory(with_meminfo(version_2(unit(max=f"{2 * GIB}", current="0") | slice_files)))
    assert (available.bytes, available.limited_by.endswith("/system.slice/memory.max")) == (GIB, True)


def test_version_1_limits(version_1):
    """Guards version 1's own names, and its way to spell "no limit" (a number no machine has)."""
    files = {
        "memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "memory/memory.usage_in_bytes": f"{GIB}\n",
        "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n",
    }
    available = available_memory(with_meminfo(version_1(files)))
    assert available.bytes == GIB * 3 // 2
    assert available.limited_by == "the control group limit /sys/fs/cgroup/memory/memory.limit_in_bytes"
    unlimited = {"memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert available_memory(with_meminfo(version_1(unlimited))).bytes == 8 * GIB


@pytest.mark.parametrize(
    ("kind", "field", "words"),
    [(resource.RLIMIT_AS, "VmSize", "ulimit -v"), (resource.RLIMIT_DATA, "VmData", "ulimit -d")],
)
def test_process_limits(fake_root, monkeypatch, kind, field, words):
    """Guards ulimit: what the process already uses is subtracted, and never below zero."""
    root = fake_root({"proc/meminfo": MEMINFO, "proc/self/status": f"Name:\tnybble\n{field}:\t 1048576 kB\n"})
    limits = {kind: 3 * GIB}
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (limits.get(asked, resource.RLIM_INFINITY), -1))
    available = available_memory(root)
    assert available.bytes == 2 * GIB
    assert words in available.limited_by
    limits[kind] = GIB // 2
    assert available_memory(root).bytes == 0


def test_a_real_address_space_limit():
    """Guards against units or fields that only fit the made-up files."""
    program = (
        "import resource; from nybble.machine.memory import available_memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))\n"
        "print(available_memory().bytes, available_memory().limited_by)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    left, words = output.split(maxsplit=1)
    assert 2**26 < int(left) < 2**28
    assert "ulimit -v" in words


def test_without_any_kernel_files(tmp_path):
    """Guards a system without /proc: an answer, not an exception."""
    assert available_memory(tmp_path).bytes > 0
    assert peak_resident_bytes(tmp_path) > 2**20


def test_peak_counts_what_was_touched_and_freed():
    """Guards the unit and that the peak outlives the memory."""
    program = (
        "from nybble.machine.memory import peak_resident_bytes\n"
        "before = peak_resident_bytes()\n"
        "block = bytearray(b'x') * (64 * 2**20)\n"
        "del block\n"
        "print(peak_resident_bytes() - before)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 60 * 2**20 < int(output) < 80 * 2**20
