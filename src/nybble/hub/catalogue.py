"""The catalogue: models known by name, read from ``models.toml`` and checked key by key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import ModelFileError

_MODELS = Path(__file__).with_name("models.toml")
# Names become directories of the cache and parts of a command line.
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PYPI = re.compile(r"pypi:(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!]*)")
_HUB = re.compile(r"hub:(?P<repository>[\w.-]+/[\w.-]+)", re.ASCII)
_COMMON_KEYS = {"title", "source", "size", "sha256", "quantisation", "license", "default"}


@dataclass(frozen=True, slots=True)
class PyPISource:
    """A file inside a wheel on the Python package index. ``member`` is its path there; sizes are bytes."""

    package: str
    version: str
    member: str
    wheel_size: int
    wheel_sha256: str

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}"

    @property
    def file(self) -> str:
        """Path of the model file inside the source."""
        return self.member


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a Hugging Face repository at one commit."""

    repository: str
    revision: str
    file: str

    def __str__(self) -> str:
        return f"hub:{self.repository}"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One known model. ``size`` (bytes) and ``sha256`` (hex) are those of the model file."""

    name: str
    title: str
    source: PyPISource | HubSource
    size: int
    sha256: str
    quantisation: str
    license: str
    default: bool

    @property
    def file_name(self) -> str:
        """Name of the model file, without directories."""
        return PurePosixPath(self.source.file).name


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All known models by name, and the one used when no name is given."""

    entries: Mapping[str, CatalogueEntry]
    default: CatalogueEntry


def load_catalogue(path: Path = _MODELS) -> Catalogue:
    """Read and check a catalogue. Raises ModelFileError naming file, model, key and what was expected."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(path, "", f"the catalogue cannot be read: {error.strerror}") from error
    except ValueError as error:  # malformed TOML, or bytes that are no UTF-8
        raise ModelFileError(path, "", f"the catalogue is not valid TOML: {error}") from error
    entries = {name: _Reader(path, name, table).entry() for name, table in document.items()}
    defaults = [entry for entry in entries.values() if entry.default]
    if len(defaults) != 1:
        named = ", ".join(entry.name for entry in defaults) or "none"
        raise ModelFileError(path, "default", f"exactly one model must be the default, found {named}")
    return Catalogue(entries, defaults[0])


class _Reader:
    """Takes the keys of one table, each with its type and pattern, and complains about what is left."""

    def __init__(self, path: Path, name: str, table: object) -> None:
        self.path = path
        self.name = name
        if not isinstance(table, dict):
            raise self.problem("", f"expected a table, found {table!r}")
        if not _NAME.fullmatch(name):
            raise self.problem("", "a name consists of lower-case letters, digits, dots and hyphens")
        self.table: dict[str, object] = table

    def problem(self, key: str, text: str) -> ModelFileError:
        return ModelFileError(self.path, f"[{self.name}] {key}".strip(), text)

    def refuse_others(self, known: set[str]) -> None:
        unknown = sorted(set(self.table) - known)
        if unknown:
            raise self.problem(unknown[0], f"unknown key; known are {', '.join(sorted(known))}")

    def entry(self) -> CatalogueEntry:
        source, keys = self.source()
        self.refuse_others(_COMMON_KEYS | keys)
        default = self.table.get("default", False)
        if not isinstance(default, bool):
            raise self.problem("default", f"expected true or false, found {default!r}")
        return CatalogueEntry(
            name=self.name,
            title=self.text("title"),
            source=source,
            size=self.size("size"),
            sha256=self.sha256("sha256"),
            quantisation=self.text("quantisation"),
            license=self.text("license"),
            default=default,
        )

    def source(self) -> tuple[PyPISource | HubSource, set[str]]:
        """The source and the keys that only this kind of source has."""
        text = self.text("source")
        if pypi := _PYPI.fullmatch(text):
            wheel = _Reader(self.path, f"{self.name}.wheel", self.table.get("wheel"))
            wheel.refuse_others({"size", "sha256"})
            return PyPISource(
                package=pypi["package"],
                version=pypi["version"],
                member=self.file("member"),
                wheel_size=wheel.size("size"),
                wheel_sha256=wheel.sha256("sha256"),
            ), {"member", "wheel"}
        if hub := _HUB.fullmatch(text):
            revision = self.text("revision", _COMMIT, "a full commit hash of 40 hex digits")
            return HubSource(hub["repository"], revision, self.file("file")), {"file", "revision"}
        raise self.problem("source", f'expected "pypi:package==version" or "hub:organisation/repo", found {text!r}')

    def text(self, key: str, pattern: re.Pattern[str] | None = None, meaning: str = "text") -> str:
        value = self.table.get(key)
        if not isinstance(value, str) or not value or (pattern is not None and not pattern.fullmatch(value)):
            raise self.problem(key, f"expected {meaning}, found {value!r}")
        return value

    def sha256(self, key: str) -> str:
        return self.text(key, _SHA256, "64 lower-case hex digits")

    def size(self, key: str) -> int:
        value = self.table.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.problem(key, f"expected a number of bytes above 0, found {value!r}")
        return value

    def file(self, key: str) -> str:
        """A relative path without tricks: it names a file in the source and, by its last part, one in the cache."""
        value = self.text(key)
        if value.startswith("/") or any(part in ("", ".", "..") for part in value.split("/")) or "\\" in value:
            raise self.problem(key, f"expected a plain relative path, found {value!r}")
        return value
