"""The directory of the packed cache: ``packed/`` in nybble's cache.

``<content>-<options>-<code>.packed`` is an entry: SHA-256 of the model's files, what it was packed for, and which code
packed it. ``files/<identity>.json`` says which content a file has that was read before, so that a start need not read
it again. Files appear under these names only complete, by renaming; what a killed run left is removed by the next that
writes. Damage by other causes is found by checksums. Nothing is locked for reading: an entry in use may be removed, its
reader keeps it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .. import __version__, _native
from ..formats.file_identity import FileIdentity, identify, is_settled
from ..hub.cache import default_directory
from .content import content_hash
from .entry import BrokenEntry, Entry, read_description, read_entry

MOST_BYTES = 8 << 30
MOST_SHARE = 0.25
"""The cache takes at most that much, and at most this share of what the disk has left for it."""

MOST_KNOWN_FILES = 256
"""So many files' content is remembered."""

_SUFFIX, _PARTIAL = ".packed", ".partial-"
_CODE_ROOMS = ("formats", "graph", "models", "packed", "quant", "tokenizer")


class StoredModel(NamedTuple):
    """An entry as ``nybble cache ls`` shows it. ``used`` is in seconds since 1970."""

    name: str
    model: str
    options: str
    bytes: int
    used: float


class Source(NamedTuple):
    """The path that was opened, a file or folder, and the files of its model, as they were when they were opened.

    Files that would count, but are missing, are among them.
    """

    opened: FileIdentity
    files: tuple[FileIdentity, ...]


class PackedStore:
    """The packed cache below ``directory``, by default nybble's cache. Nothing is created before it is needed."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = (directory or default_directory()) / "packed"

    def find(self, path: Path, options: str, threads: int) -> Entry | None:
        """The entry of the model that ``path`` leads to, its weights being read by ``threads`` threads.

        None if there is none that is whole; what is broken is removed.
        """
        with contextlib.suppress(OSError):
            content = self._known_content(identify(path))
            if content is None:
                return None
            entry_path = self._entry_path(content, options)
            try:
                entry = read_entry(entry_path, threads)
            except BrokenEntry:
                entry_path.unlink()
                return None
            with contextlib.suppress(OSError):
                os.utime(entry_path)  # for the eviction of what was not used for longest
            return entry
        return None

    def discard(self, path: Path, options: str) -> None:
        """Remove the entry of the model that ``path`` leads to: it could not be used."""
        with contextlib.suppress(OSError):
            if content := self._known_content(identify(path)):
                self._entry_path(content, options).unlink()

    def save(self, source: Source, options: str, size: int, write: Callable[[int], None]) -> bool:
        """Store an entry of about ``size`` bytes for a model loaded from ``source``; ``write`` fills the open file.

        False, and nothing changed, if the model's files are not what they were, were written just now, or the cache has
        no room. Raises OSError.
        """
        paths = [Path(file.path) for file in source.files]
        if not all(map(is_settled, (source.opened, *source.files))) or not self._make_room(size):
            return False
        content = content_hash(paths)
        if tuple(map(identify, paths)) != source.files or identify(Path(source.opened.path)) != source.opened:
            return False
        with self._new_file(self._entry_path(content, options)) as descriptor:
            write(descriptor)
        with self._new_file(self._content_path(source.opened)) as descriptor:
            known = json.dumps({"content": content, "files": source.files}).encode("ascii")
            os.write(descriptor, known)
        return True

    def models(self) -> list[StoredModel]:
        """What is stored, the most recently used first."""
        found = []
        for path in self.directory.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                try:
                    description = read_description(path)
                    model, options = str(description.get("model", "?")), str(description.get("options", "?"))
                except BrokenEntry as problem:
                    model, options = f"broken: {problem}", "?"
                status = path.stat()
                found.append(StoredModel(path.stem, model, options, status.st_size, status.st_mtime))
        return sorted(found, key=lambda model: -model.used)

    def remove(self, name: str | None) -> list[StoredModel]:
        """Remove the entries whose model's path, file name or own name is ``name``, or all; returns them."""
        gone = []
        for model in self.models():
            if name is None or name in (model.model, Path(model.model).name, model.name):
                (self.directory / f"{model.name}{_SUFFIX}").unlink(missing_ok=True)
                gone.append(model)
        if name is None:
            for known in self.directory.glob("files/*.json"):
                known.unlink(missing_ok=True)
            self._remove_partial()
        return gone

    def _entry_path(self, content: str, options: str) -> Path:
        return self.directory / f"{content[:32]}-{options}-{code_version()}{_SUFFIX}"

    def _content_path(self, opened: FileIdentity) -> Path:
        """Named by the path, too: what lies beside a file belongs to the model, and differs where it is linked."""
        numbers = "-".join(f"{number:x}" for number in opened[1:])
        return self.directory / "files" / f"{_native.checksum(os.fsencode(opened.path)):016x}-{numbers}.json"

    def _known_content(self, opened: FileIdentity) -> str | None:
        """The content hash of the model of this file, if none of its files changed since it was computed."""
        try:
            known = json.loads(self._content_path(opened).read_bytes())
            content, files = known["content"], [FileIdentity(*file) for file in known["files"]]
            unchanged = all(identify(Path(file.path)) == file for file in files)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        whole = isinstance(content, str) and len(content) == 64 and content.isalnum() and files
        return content if whole and unchanged else None

    @contextlib.contextmanager
    def _new_file(self, final: Path) -> Iterator[int]:
        """An open file that gets its name when the block ends, or vanishes if that fails."""
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = final.parent / f"{_PARTIAL}{os.urandom(8).hex()}"
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # The lock says that its writer is alive.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
            partial.replace(final)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def _remove_partial(self) -> None:
        """Remove what killed writers left."""
        for partial in [*self.directory.glob(f"{_PARTIAL}*"), *self.directory.glob(f"files/{_PARTIAL}*")]:
            with contextlib.suppress(OSError), partial.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                partial.unlink()

    def _make_room(self, size: int) -> bool:
        """Evict what was not used for longest until ``size`` bytes fit; False if they cannot."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._remove_partial()
        entries = []
        for path in self.directory.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                entries.append((path.stat().st_mtime, path.stat().st_size, path))
        entries.sort()
        used = sum(entry_size for _, entry_size, _ in entries)
        disk = os.statvfs(self.directory)
        limit = min(MOST_BYTES, int(MOST_SHARE * (disk.f_bavail * disk.f_frsize + used)))
        if size > limit:
            return False
        for _, entry_size, path in entries:
            if used + size <= limit:
                break
            path.unlink(missing_ok=True)
            used -= entry_size
        known = sorted(self.directory.glob("files/*.json"), key=lambda path: path.stat().st_mtime)
        for path in known[:-MOST_KNOWN_FILES]:
            path.unlink(missing_ok=True)
        return True


def code_version() -> str:
    """16 hex digits that change with the code that decides what an entry holds: the layout version.

    Made of the size and time of each file rather than a number somebody must remember to raise.
    """
    root = Path(__file__).parents[1]
    facts = [__version__]
    for place in (Path(str(_native.__file__)), *(root / room for room in _CODE_ROOMS)):
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        for file in files:
            status = file.stat()
            facts.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    return f"{_native.checksum(chr(10).join(facts).encode()):016x}"
