"""A file mapped into memory, read-only, whose pages can be given back."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from ..errors import ModelFileError
from .file_identity import identify


class MappedFile:
    """A regular file, mapped whole.

    ``data`` is its bytes as a read-only memoryview, ``identity`` tells this file from any other. The mapping lives as
    long as anything views it, so tensors stay valid after this object is gone. The file is opened once: its size is
    taken from the open descriptor, the length of the mapping is that size, and readers check every extent against it.

    What remains: if another process cuts the file while it is mapped, touching a page past the new end raises SIGBUS
    and ends the process. No check can close that window: replace model files by renaming, never by writing over them.

    Raises :class:`ModelFileError` when the path is missing, unreadable, a directory, or not a regular file. An empty
    file maps to no bytes.
    """

    __slots__ = ("_map", "data", "identity", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # O_NONBLOCK: opening a named pipe must not wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISDIR(status.st_mode):
                    raise ModelFileError(path, "", "is a directory; give the model file inside it")
                if not stat.S_ISREG(status.st_mode):
                    raise ModelFileError(path, "", "is not a regular file")
                self.identity = identify(path, status)
                self._map = (
                    mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ) if status.st_size > 0 else None
                )
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ModelFileError(path, "", f"cannot be opened: {error.strerror}") from error
        except ValueError as error:  # the file shrank between fstat and mmap, or the path holds a NUL
            raise ModelFileError(path, "", f"cannot be mapped: {error}") from error
        self.data = memoryview(self._map if self._map is not None else b"")

    @property
    def size(self) -> int:
        """Size of the file in bytes when it was opened."""
        return len(self.data)

    def release(self) -> None:
        """Tell the operating system that none of the file's pages are needed in memory at the moment.

        They are read again if touched. Dropping some pages only would not help: touching one page maps all of the page
        cache's large folio around it. Does nothing where the system cannot do it.
        """
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
