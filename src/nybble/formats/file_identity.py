"""Which file is which, without reading it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

SETTLED_SECONDS = 2.0
"""A file that changed less than this ago is not known by its times: FAT and some network file systems count seconds by
twos, and a second change within one tick would not show."""


class FileIdentity(NamedTuple):
    """Which bytes a path leads to, as far as the file system knows.

    Every write changes both times, and no program can set ``changed`` (ctime) to what it likes, so equal identities
    mean equal bytes: unless a clock was turned back, or the file was written within one tick of the clock, for which
    see :func:`is_settled`. Writing to the block device beneath a mounted file system goes unnoticed.
    """

    path: str
    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @property
    def exists(self) -> bool:
        """Whether there was a file."""
        return self.size >= 0


def identify(path: Path, status: os.stat_result | None = None) -> FileIdentity:
    """The identity of the file or folder that ``path`` leads to now, or of the open one with ``status``.

    Raises OSError, but not for a path that leads nowhere.
    """
    try:
        status = status or path.stat()
    except FileNotFoundError:
        return FileIdentity(str(path.absolute()), 0, 0, -1, 0, 0)
    return FileIdentity(
        str(path.absolute()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def is_settled(identity: FileIdentity) -> bool:
    """Whether any later change of the file would change its identity."""
    return max(identity.modified, identity.changed) / 1e9 + SETTLED_SECONDS < time.time()
