"""Our cache of catalogue models: ``models/<name>/<first digits of the SHA-256>/<file>``.

A file is under its final name only when it is complete, checked and on the disk: it is written under another name,
synchronised, and renamed. A killed run or a power cut leaves at most a partial directory, which the next download
removes. A lock per model (flock, which the kernel releases however its holder ends) lets processes share a download.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DownloadFailed
from .catalogue import CatalogueEntry
from .progress import Progress

_PARTIAL = ".partial-"
_LOCK_POLL_SECONDS = 0.2
_ELSEWHERE = "set NYBBLE_CACHE to another directory"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that a source has written into the workspace it was given, and the SHA-256 (hex) of what it wrote."""

    path: Path
    sha256: str


def default_directory() -> Path:
    """``NYBBLE_CACHE``, else ``XDG_CACHE_HOME``/nybble, else ~/.cache/nybble; DownloadFailed without a home."""
    if chosen := os.environ.get("NYBBLE_CACHE"):
        return Path(chosen).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    if shared.startswith("/"):
        return Path(shared) / "nybble"
    try:
        return Path("~/.cache/nybble").expanduser()
    except RuntimeError as error:  # containers that run under a user id without an entry
        raise DownloadFailed("no home directory for the model cache; set NYBBLE_CACHE to a directory") from error


class ModelCache:
    """The cache below one directory, by default :func:`default_directory`. Nothing is created before it is needed."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()

    def location(self, entry: CatalogueEntry) -> Path:
        """Where the model's file is, or would be."""
        return self.directory / "models" / entry.name / entry.sha256[:12] / entry.file_name

    def find(self, entry: CatalogueEntry) -> Path | None:
        """The model's file if it is here in its full size. Needs no right to write."""
        path = self.location(entry)
        try:
            return path if path.stat().st_size == entry.size else None
        except OSError:
            return None

    def store(
        self,
        entry: CatalogueEntry,
        space: int,
        fetch: Callable[[Path], Fetched],
        progress: Progress | None = None,
    ) -> Path:
        """The model's file, fetched if it is not here yet.

        ``fetch`` gets an empty directory on the cache's disk and leaves the file in it; ``space`` is the most bytes it
        needs there. Only one process fetches a model at a time, the others wait and use its file.
        Raises DownloadFailed when the cache cannot be written or the file is not the one the catalogue describes.
        """
        if present := self.find(entry):
            return present
        with self._disk_errors(space), self._locked(entry.name, progress):
            if present := self.find(entry):
                return present
            self._remove_partial(entry.name)
            home = self.location(entry).parent
            home.mkdir(parents=True, exist_ok=True)
            self._require_space(space)
            # Only now: they import a dozen modules that a start without a download does not need.
            import shutil
            import tempfile

            workspace = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=home.parent))
            try:
                fetched = fetch(workspace)
                _check(entry, fetched)
                return _publish(fetched.path, self.location(entry))
            finally:
                shutil.rmtree(workspace, ignore_errors=True)

    def remove(self, name: str) -> bool:
        """Delete everything stored under a name; False if there was nothing. Waits for a download of it to end."""
        home = self.directory / "models" / name
        if not home.is_dir():
            return False
        import shutil

        with self._disk_errors(0), self._locked(name, None):
            shutil.rmtree(home)
        return True

    def _remove_partial(self, name: str) -> None:
        """Clear what killed runs left. Under the model's lock nobody alive owns any of it."""
        import shutil

        for leftover in (self.directory / "models" / name).glob(f"{_PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _require_space(self, space: int) -> None:
        if _free_bytes(self.directory) < space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextlib.contextmanager
    def _locked(self, name: str, progress: Progress | None) -> Iterator[None]:
        """Hold the model's lock. Lock files stay for good: removing one would let two processes lock two files."""
        path = self.directory / "locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if progress is not None:
                        progress(f"waiting for another process that is fetching {name}", 0, None)
                    time.sleep(_LOCK_POLL_SECONDS)
            yield

    @contextlib.contextmanager
    def _disk_errors(self, space: int) -> Iterator[None]:
        """One line for each way a disk can refuse."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DownloadFailed(
                    f"no space left in the model cache {self.directory}: {_megabytes(space)} are needed, "
                    f"{self._free()} are free; make room or {_ELSEWHERE}"
                ) from error
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise DownloadFailed(
                    f"the file system of the model cache {self.directory} has no file locks ({reason}); "
                    f"{_ELSEWHERE}, on a local disk"
                ) from error
            raise DownloadFailed(
                f"cannot write to the model cache {self.directory}: {reason}"
                f"{f' ({error.filename})' if error.filename else ''}; {_ELSEWHERE}"
            ) from error

    def _free(self) -> str:
        try:
            return _megabytes(_free_bytes(self.directory))
        except OSError:
            return "none"


def _check(entry: CatalogueEntry, fetched: Fetched) -> None:
    size = fetched.path.stat().st_size
    if size != entry.size:
        raise DownloadFailed(
            f"{entry.name}: {entry.file_name} from {entry.source} has {size} bytes, expected {entry.size}; "
            "it was thrown away, try again"
        )
    if fetched.sha256 != entry.sha256:
        raise DownloadFailed(
            f"{entry.name}: {entry.file_name} from {entry.source} has SHA-256 {fetched.sha256}, expected "
            f"{entry.sha256}; it was thrown away, try again"
        )


def _publish(partial: Path, final: Path) -> Path:
    """Put a file under its final name so that a power cut at any moment leaves all of it or nothing."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(final)
    # The rename is on the disk only when the directory is.
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return final


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
