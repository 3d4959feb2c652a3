"""The small files that lie beside a model and say the rest of it: configurations, tokeniser, chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ModelFileError
from .file_identity import FileIdentity, identify
from .json_file import MAXIMUM_CONFIGURATION_BYTES, read_json, read_text

CONFIGURATION = "config.json"
"""What transformers calls the configuration of a model."""


class Companions:
    """The files of ``folder``, each read when asked for; which were looked for is remembered, found or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._looked_for: dict[str, FileIdentity] = {}

    @property
    def identities(self) -> tuple[FileIdentity, ...]:
        """All files that were looked for, as they were then: those that are missing, too."""
        return tuple(self._looked_for.values())

    def find(self, name: str) -> Path | None:
        """The file called ``name``; None if there is none. Raises :class:`ModelFileError` where none can be had."""
        path = self.folder / name
        try:
            identity = identify(path)
        except OSError as error:
            raise ModelFileError(path, "", f"cannot be opened: {error.strerror}") from error
        self._looked_for.setdefault(name, identity)
        return path if identity.exists else None

    def json(self, name: str) -> dict[str, Any]:
        """The object in the file called ``name``, empty if there is no such file. Raises as :func:`read_json`."""
        path = self.find(name)
        return {} if path is None else read_json(path)

    def text(self, name: str) -> str | None:
        """The text of the file called ``name``, None if there is no such file. Raises as :func:`read_json`."""
        path = self.find(name)
        return None if path is None else read_text(path, MAXIMUM_CONFIGURATION_BYTES)
