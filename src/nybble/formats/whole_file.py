"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO


class WholeFile:
    """A new file under a temporary name beside ``path``, which it replaces on leaving the context without an error.

    Write to ``file``. Use :meth:`close` where a ``with`` block does not fit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
        self._temporary = Path(name)
        self.file: BinaryIO = os.fdopen(descriptor, "wb")

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(is_wanted=error is None)

    def close(self, *, is_wanted: bool) -> None:
        """Give the file its name if ``is_wanted``; else nothing of it stays."""
        try:
            if is_wanted:
                self.file.flush()
                os.fsync(self.file.fileno())
                os.fchmod(self.file.fileno(), usual_mode(0o666))
                self._temporary.replace(self._path)
        finally:
            self.file.close()
            self._temporary.unlink(missing_ok=True)


def usual_mode(mode: int) -> int:
    """The permissions that what is made with ``mode`` the usual way gets from this process."""
    mask = os.umask(0)
    os.umask(mask)
    return mode & ~mask
