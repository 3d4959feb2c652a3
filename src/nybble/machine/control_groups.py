"""The control groups (containers, service units) that bound this process, from its own up to the root.

Paths and file names: kernel documentation, admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/; the mount table is
proc(5) ``/proc/[pid]/mountinfo``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .kernel_files import parse_number, read_text


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One directory of a control group hierarchy; ``version`` is 1 or 2."""

    version: int
    directory: Path

    def number(self, name: str) -> int | None:
        """The whole number in the file ``name``; None if there is no such file or it says "max" (no limit)."""
        return parse_number(read_text(self.directory / name))

    def statistic(self, name: str, key: str) -> int | None:
        """The number behind ``key`` in a file of "key value" lines."""
        for line in read_text(self.directory / name).splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == key:
                return parse_number(words[1])
        return None


def control_groups(controller: str, root: Path = Path("/")) -> list[ControlGroup]:
    """The groups of this process that may carry ``controller`` ("cpu", "memory"), innermost first, both versions.

    ``root`` is where the file system starts; tests give a directory with a made-up /proc and /sys in it.
    """
    memberships = _memberships(controller, root)
    found: list[ControlGroup] = []
    seen: set[int] = set()
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        mount = _parse_mount(line, controller)
        if mount is None or mount[0] in seen or mount[0] not in memberships:
            continue
        version, mounted, mount_point = mount
        seen.add(version)
        top = root / mount_point.relative_to("/")
        inside = _below(memberships[version], mounted)
        found += [ControlGroup(version, top / part) for part in (inside, *inside.parents)]
    return found


def _memberships(controller: str, root: Path) -> dict[int, PurePosixPath]:
    """Version -> path of the process's group, from lines ``hierarchy:controllers:path``."""
    paths: dict[int, PurePosixPath] = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            paths[2] = PurePosixPath(path)
        elif controller in controllers.split(","):
            paths[1] = PurePosixPath(path)
    return paths


def _parse_mount(line: str, controller: str) -> tuple[int, PurePosixPath, PurePosixPath] | None:
    """(version, mounted directory of the hierarchy, mount point) if the line mounts a hierarchy with the controller."""
    before, separator, after = line.partition(" - ")
    fields, types = before.split(), after.split()
    if not separator or len(fields) < 5 or len(types) < 3:
        return None
    mounted, mount_point = (PurePosixPath(_unescape(field)) for field in fields[3:5])
    if not mount_point.is_absolute():
        return None
    if types[0] == "cgroup2":
        return 2, mounted, mount_point
    if types[0] == "cgroup" and controller in types[2].split(","):
        return 1, mounted, mount_point
    return None


def _unescape(field: str) -> str:
    """The mount table writes blanks and backslashes as octal escapes."""
    for character in " \t\n\\":
        field = field.replace(f"\\{ord(character):03o}", character)
    return field


def _below(path: PurePosixPath, mounted: PurePosixPath) -> PurePosixPath:
    """The group's path relative to what is mounted.

    A container often mounts its own group only; a path outside of the mount (or one a namespace shows as "..") cannot
    be followed, and the top of the mount is the nearest group that is visible.
    """
    if ".." in path.parts or not path.is_relative_to(mounted):
        return PurePosixPath()
    return path.relative_to(mounted)
