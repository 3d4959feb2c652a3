"""What a file holds, told from every byte of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_READ_BYTES = 1 << 20
_MISSING = (1 << 64) - 1


def content_hash(paths: Sequence[Path]) -> str:
    """SHA-256 (hex) over the content of files, in order, each with its length, all ones for one that is missing.

    Raises OSError.
    """
    import hashlib

    whole = hashlib.sha256()
    buffer = bytearray(_READ_BYTES)
    for path in paths:
        one, size = hashlib.sha256(), 0
        try:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    one.update(memoryview(buffer)[:count])
                    size += count
        except FileNotFoundError:
            size = _MISSING
        whole.update(size.to_bytes(8, "little") + one.digest())
    return whole.hexdigest()
