"""The CPU allowance on made-up control group trees of both versions."""

import os
import subprocess
import sys

import pytest

from nybble.machine.control_groups import control_groups
from nybble.machine.cpus import CpuAllowance, allowed_cpus


@pytest.fixture(autouse=True)
def sixteen_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


@pytest.mark.parametrize(
    ("text", "quota", "count"),
    [
        ("200000 100000\n", 2.0, 2),
        ("max 100000\n", None, 16),
        ("150000 100000\n", 1.5, 1),
        ("299999 100000\n", 2.99999, 2),
        ("50000 100000\n", 0.5, 1),
        ("6400000 100000\n", 64.0, 16),
        ("300000\n", 3.0, 3),
        ("40000 20000", 2.0, 2),
        ("", None, 16),
        ("garbage here", None, 16),
        ("200000 0", None, 16),
        ("-1 100000", None, 16),
    ],
)
def test_version_2_quota(version_2, text, quota, count):
    """Guards against ignoring a container's quota (field report 59), and against dividing by what is not there."""
    root = version_2({"system.slice/nybble.service/cpu.max": text})
    assert allowed_cpus(root) == CpuAllowance(count, 16, quota)


@pytest.mark.parametrize("limited", ["system.slice/nybble.service", "system.slice", "."])
def test_any_ancestor_can_limit(version_2, limited):
    """Guards against reading the innermost group only: a slice limits every unit in it."""
    groups = {f"{name}/cpu.max": "max 100000" for name in ("system.slice/nybble.service", "system.slice", ".")}
    root = version_2(groups | {f"{limited}/cpu.max": "300000 100000"})
    assert allowed_cpus(root).count == 3


@pytest.mark.parametrize(("quota", "count"), [("250000", 2), ("-1", 16), ("100000", 1), ("x", 16)])
@pytest.mark.parametrize("mounted", ["/docker/abc", "/", "/docker/other"])
def test_version_1_quota(version_1, quota, count, mounted):
    """Guards the mount's own root: Docker mounts the container's group, elsewhere the hierarchy's root is mounted.

    A group outside of what is mounted cannot be followed; the top of the mount is then the nearest one visible.
    """
    directory = "cpu,cpuacct/docker/abc" if mounted == "/" else "cpu,cpuacct"
    files = {f"{directory}/cpu.cfs_quota_us": quota, f"{directory}/cpu.cfs_period_us": "100000"}
    assert allowed_cpus(version_1(files, mounted)).count == count


def test_hybrid_systems_take_the_smaller_of_both_versions(fake_root):
    """Guards systemd's hybrid mode: version 2 is mounted beside version 1, either may hold the quota."""
    mounts = (
        "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    files = {
        "proc/self/cgroup": "1:cpu:/a\n0::/b\n",
        "proc/self/mountinfo": mounts,
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "500000",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/unified/b/cpu.max": "700000 100000",
    }
    assert allowed_cpus(fake_root(files)) == CpuAllowance(5, 16, 5.0)


def test_affinity_limits_without_any_control_group(monkeypatch, tmp_path):
    """Guards taskset and cpusets, which show in the affinity, on a system without /proc."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 7})
    assert allowed_cpus(tmp_path) == CpuAllowance(2, 2, None)


@pytest.mark.parametrize(
    ("membership", "mounts", "directories"),
    [
        ("0::/a/b\n", "29 23 0:26 / /sys/cg rw - cgroup2 none rw\n", ["sys/cg/a/b", "sys/cg/a", "sys/cg"]),
        ("0::/a:b\n", "29 23 0:26 / /s\\040p\\134 rw - cgroup2 none rw\n", ["s p\\/a:b", "s p\\"]),
        ("0::/../x\n", "29 23 0:26 / /sys/cg rw - cgroup2 none rw\n", ["sys/cg"]),
        ("0::/\n", "29 23 0:26 /../.. /sys/cg rw - cgroup2 none rw\n", ["sys/cg"]),
        ("0::/ab\n", "29 23 0:26 /a /sys/cg rw - cgroup2 none rw\n", ["sys/cg"]),
        ("0::/a\n", "30 1 0:1 / /x rw - cgroup2 none rw\n29 1 0:1 / /y rw - cgroup2 none rw\n", ["x/a", "x"]),
        ("3:cpuset:/a\n", "29 1 0:1 / /x rw - cgroup none rw,cpu\n", []),
        ("0::/a\n", "29 1 0:1 / x/y rw - cgroup2 none rw\n\nshort\n29 1 - cgroup2\n29 1 0:1 / /x rw - cgroup2\n", []),
        ("", "29 23 0:26 / /sys/cg rw - cgroup2 none rw\n", []),
        ("nonsense\n:::\n", "", []),
    ],
)
def test_group_directories(fake_root, membership, mounts, directories):
    """Guards the parsing of the two kernel tables: escapes, namespaces, double mounts, lines cut short."""
    root = fake_root({"proc/self/cgroup": membership, "proc/self/mountinfo": mounts})
    assert [group.directory for group in control_groups("cpu", root)] == [root / name for name in directories]


def test_this_machine():
    """Guards against a crash on the machine at hand: the affinity of a pinned child process is what it is told."""
    program = (
        "import os; from nybble.machine.cpus import allowed_cpus\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(allowed_cpus().count, allowed_cpus().affinity)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "1 1\n"
