"""The SHA-256 of a file, read in pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .progress import Progress

_CHUNK = 2**20


def file_sha256(path: Path, progress: Progress | None = None) -> str:
    """The SHA-256 of a file, in lower-case hex."""
    digest, size, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"checking {path.name}", done, size)
    return digest.hexdigest()
