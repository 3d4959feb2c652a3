"""Made-up file systems: each test writes the few files of /proc and /sys that its case needs."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def fake_root(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    def build(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return build


@pytest.fixture
def version_2(fake_root):
    """A unified hierarchy with the process in /system.slice/nybble.service."""

    def build(files: Mapping[str, str]) -> Path:
        groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        base = {"proc/self/cgroup": "0::/system.slice/nybble.service\n", "proc/self/mountinfo": V2}
        return fake_root(base | groups)

    return build


@pytest.fixture
def version_1(fake_root):
    """Split hierarchies as Docker showed them: the container's own group is mounted, under its full host path."""

    def build(files: Mapping[str, str], mounted: str = "/docker/abc") -> Path:
        mounts = (
            f"33 31 0:30 {mounted} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
            f"34 31 0:33 {mounted} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        )
        groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        membership = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"
        return fake_root({"proc/self/cgroup": membership, "proc/self/mountinfo": mounts} | groups)

    return build
