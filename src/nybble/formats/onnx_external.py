"""External data: initialisers whose bytes lie in files beside the model.

A ``location`` comes from the model file, so it is hostile. What is accepted: a plain relative path of no ``..``, whose
real file lies in the model's folder, or, where the model lies in a hub cache's snapshot, among the blobs of the same
repository (the cache links its files there). Each file is opened once; size and kind are those of the open file.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from .file_identity import FileIdentity
from .mapped_file import MappedFile

MAXIMUM_FILES = 4096
MAXIMUM_LOCATION_CHARACTERS = 1024


class ExternalFiles:
    """The external files of one model, each mapped when it is first needed."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._folder = model.parent
        self._mapped: dict[Path, MappedFile] = {}
        self._locations: dict[str, MappedFile] = {}

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """All files mapped so far."""
        return tuple(self._mapped.values())

    @property
    def identities(self) -> tuple[FileIdentity, ...]:
        """Those of the files mapped so far, by the paths that led to them."""
        return tuple(
            mapped.identity._replace(path=str((self._folder / location).absolute()))
            for location, mapped in self._locations.items()
        )

    def octets(self, location: str, offset: int, length: int, tensor: str) -> NDArray[np.uint8]:
        """``length`` bytes from ``offset`` of the file at ``location``, uint8 (length,), a view.

        Raises :class:`ModelFileError` naming ``tensor`` for a location outside the folder and bytes outside the file.
        """
        mapped = self._file(location, tensor)
        if not (0 <= offset <= mapped.size and 0 <= length <= mapped.size - offset):
            raise ModelFileError(
                self._model,
                tensor,
                f"its external data are {length} bytes from byte {offset} of {mapped.path.name}, which has "
                f"{mapped.size} bytes; the download did not finish, or the file is not this model's",
            )
        return np.frombuffer(mapped.data, np.uint8, length, offset)

    def path_of(self, location: str) -> Path:
        """The file that a location read before means."""
        return self._locations[location].path

    def _file(self, location: str, tensor: str) -> MappedFile:
        if location not in self._locations:
            path = self._checked_path(location, tensor)
            if path not in self._mapped:
                if len(self._mapped) >= MAXIMUM_FILES:
                    raise ModelFileError(self._model, tensor, f"needs more than {MAXIMUM_FILES} external files")
                self._mapped[path] = MappedFile(path)
            self._locations[location] = self._mapped[path]
        return self._locations[location]

    def _checked_path(self, location: str, tensor: str) -> Path:
        relative = PurePosixPath(location)
        plain = (
            0 < len(location) <= MAXIMUM_LOCATION_CHARACTERS
            and location.isprintable()
            and not relative.is_absolute()
            and not PureWindowsPath(location).is_absolute()
            and not PureWindowsPath(location).drive
            and "\\" not in location
            and relative.parts
            and ".." not in relative.parts
        )
        if not plain:
            self._refuse(tensor, location, "expected the name of a file in the model's folder")
        try:
            real, folder, model = (
                path.resolve(strict=True) for path in (self._folder / relative, self._folder, self._model)
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
            reason = getattr(error, "strerror", None) or "a circle of links"
            self._refuse(tensor, location, f"which cannot be opened: {reason}; fetch it too")
        if not (real.is_relative_to(folder) or _same_blobs(folder, model, real)):
            self._refuse(tensor, location, "a link that leads out of the model's folder; nothing is read there")
        return real

    def _refuse(self, tensor: str, location: str, problem: str) -> None:
        shown = location[:80] + ("…" if len(location) > 80 else "")
        raise ModelFileError(self._model, tensor, f"its external data lie in {shown!r}, {problem}")


def _same_blobs(folder: Path, model: Path, real: Path) -> bool:
    """Whether ``real`` is a blob of the hub cache's repository whose snapshot is ``folder`` (or holds it).

    Layout: ``models--org--name/snapshots/<commit>/…`` linking to ``models--org--name/blobs/<hash>``.
    """
    for parent in folder.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith("models--"):
            blobs = parent.parent / "blobs"
            return real.parent == blobs and (model.parent == blobs or model.is_relative_to(folder))
    return False
