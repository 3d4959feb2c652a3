"""JSON files that lie beside a model: small, UTF-8, and an object."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import ModelFileError
from .mapped_file import MappedFile

MAXIMUM_CONFIGURATION_BYTES = 16 << 20
MAXIMUM_TOKENIZER_BYTES = 64 << 20  # those of the largest vocabularies reach 33 MB


def read_json(path: Path, limit: int = MAXIMUM_CONFIGURATION_BYTES) -> dict[str, object]:
    """The object in the file at ``path``.

    Raises :class:`ModelFileError` for a file that is missing, larger than ``limit`` bytes, or no JSON object.
    """
    try:
        found = json.loads(read_text(path, limit), parse_constant=_refused_constant)
    except RecursionError:
        raise ModelFileError(path, "", "is JSON nested too deeply") from None
    except ValueError as error:
        raise ModelFileError(path, "", f"is no valid JSON ({error}); truncated or damaged") from None
    if not isinstance(found, dict):
        raise ModelFileError(path, "", f"holds a JSON {type(found).__name__}; expected an object")
    return found


def read_text(path: Path, limit: int) -> str:
    """The UTF-8 text in the file at ``path``. Raises :class:`ModelFileError` as :func:`read_json`."""
    mapped = MappedFile(path)
    if mapped.size > limit:
        raise ModelFileError(path, "", f"has {mapped.size} bytes; at most {limit} are read")
    try:
        return str(mapped.data, "utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(path, "", f"is not valid UTF-8 (byte {error.start})") from None


def _refused_constant(text: str) -> float:
    raise ValueError(f"the number {text}")
