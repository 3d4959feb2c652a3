"""What a file holds, told from every byte of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_READ_BYTES = 1 << 20


def content_hash(paths: Sequence[Path]) -> str:
    """SHA-256 (hex) over the content of files, in order, each with its length. Raises OSError."""
    import hashlib

    whole = hashlib.sha256()
    buffer = bytearray(_READ_BYTES)
    for path in paths:
        one, size = hashlib.sha256(), 0
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                one.update(memoryview(buffer)[:count])
                size += count
        whole.update(size.to_bytes(8, "little") + one.digest())
    return whole.hexdigest()
