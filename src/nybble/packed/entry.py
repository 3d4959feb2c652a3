"""One file of the packed cache: a description, parts of plain bytes, and the packed weights.

Layout, little-endian: 8 bytes of magic; u64 checksum of all that follows up to the weights; u64 length of the
description; the description, JSON in ASCII; the parts, one after the other, as long as the description's ``parts``
say; at the next multiple of 4096 the packed weights, with one checksum for each MiB in the last part.

An entry is used only if every checksum matches, and then still read as if a stranger had written it: lengths are
checked before they are used, and native code checks what it is told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import _native

_MAGIC = b"nybblep1"
_FIXED_BYTES = 24
_ALIGNMENT = 4096
_WRITE_BYTES = 8 << 20
MOST_DESCRIPTION_BYTES = 1 << 28
"""Far more than the largest vocabulary and program take."""


class BrokenEntry(Exception):
    """A file of the cache is not what was written there."""


class Entry:
    """An entry that was read: its checked description and parts, and its weights on their way into memory."""

    def __init__(self, description: dict[str, Any], parts: list[memoryview], reader: _native.WeightReader) -> None:
        self.description = description
        self.parts = parts
        self._reader = reader

    @property
    def memory(self) -> _native.WeightMemory:
        """Where the weights will be; must not be read before :meth:`finish`."""
        return self._reader.memory

    def finish(self) -> None:
        """Wait until the weights are there. Raises BrokenEntry."""
        if not self._reader.finish():
            raise BrokenEntry("its weights do not match their checksums")


def write_entry(
    descriptor: int,
    description: dict[str, Any],
    parts: Sequence[bytes | bytearray],
    memory: _native.WeightMemory,
    weight_bytes: int,
) -> None:
    """Write an entry to an open, empty file. Raises OSError."""
    parts = [*parts, _native.weight_checksums(memory, weight_bytes)]
    whole = {**description, "weight_bytes": weight_bytes, "parts": [len(part) for part in parts]}
    text = json.dumps(whole, separators=(",", ":")).encode("ascii")
    body = len(text).to_bytes(8, "little") + text + b"".join(parts)
    head = _MAGIC + _native.checksum(body).to_bytes(8, "little") + body
    head += bytes(-len(head) % _ALIGNMENT)
    with open(descriptor, "wb", buffering=0, closefd=False) as file:
        rest = memoryview(head)
        while rest:
            rest = rest[file.write(rest) :]
    for begin in range(0, weight_bytes, _WRITE_BYTES):  # in pieces, so that Ctrl-C is heard between them
        end = min(begin + _WRITE_BYTES, weight_bytes)
        if problem := _native.write_weights(memory, begin, end, descriptor):
            raise OSError(problem, os.strerror(problem))


def read_entry(path: Path, threads: int) -> Entry:
    """Begin to read an entry: description and parts now, weights by ``threads`` threads until :meth:`Entry.finish`.

    Raises BrokenEntry, OSError, MemoryError.
    """
    with path.open("rb", buffering=0) as file:
        description, parts, weights_at = _read_head(file.fileno())
        weight_bytes = description["weight_bytes"]
        if not isinstance(weight_bytes, int) or os.fstat(file.fileno()).st_size != weights_at + weight_bytes:
            raise BrokenEntry("it is cut off")
        checksums = bytes(parts.pop())
        if len(checksums) != -(-weight_bytes // (1 << 20)) * 8:
            raise BrokenEntry("it has not as many checksums as weights")
        reader = _native.WeightReader(file.fileno(), weights_at, weight_bytes, checksums, threads)
    return Entry(description, parts, reader)


def read_description(path: Path) -> dict[str, Any]:
    """The description of an entry, to list it. Raises BrokenEntry, OSError."""
    with path.open("rb", buffering=0) as file:
        return _read_head(file.fileno())[0]


def _read_head(descriptor: int) -> tuple[dict[str, Any], list[memoryview], int]:
    """Description, parts, and where the weights begin."""
    fixed = os.pread(descriptor, _FIXED_BYTES, 0)
    if len(fixed) != _FIXED_BYTES or fixed[:8] != _MAGIC:
        raise BrokenEntry("it does not begin as an entry")
    length = int.from_bytes(fixed[16:24], "little")
    if length > MOST_DESCRIPTION_BYTES:
        raise BrokenEntry("its description is too long")
    text = os.pread(descriptor, length, _FIXED_BYTES)
    try:
        description = json.loads(text)
        sizes = description["parts"]
        total = sum(sizes)
        if not sizes or min(sizes) < 0 or total > MOST_DESCRIPTION_BYTES:
            raise ValueError("impossible sizes")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BrokenEntry("its description is damaged") from error
    octets = os.pread(descriptor, total, _FIXED_BYTES + length)
    if _native.checksum(fixed[16:] + text + octets) != int.from_bytes(fixed[8:16], "little"):
        raise BrokenEntry("its description does not match its checksum")
    parts, view, at = [], memoryview(octets), 0
    for size in sizes:
        parts.append(view[at : at + size])
        at += size
    end = _FIXED_BYTES + length + total
    return description, parts, end + -end % _ALIGNMENT
