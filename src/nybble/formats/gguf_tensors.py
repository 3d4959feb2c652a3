"""The tensor table of a GGUF file, and where each tensor lies in it.

An entry is a name (u64 length, UTF-8), a u32 number of dimensions, that many u64 extents (fastest first), a u32 storage
type and a u64 offset into the data section, which begins at the next multiple of the alignment after the table.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..errors import ModelFileError, UnsupportedFeature
from ..quant.storage import StorageType
from ..quant.tensor import Tensor
from .cursor import Cursor
from .gguf_metadata import read_name

MAXIMUM_TENSORS = 1 << 16
MAXIMUM_NAME_BYTES = 256  # the format says 64; some writers allow more
MAXIMUM_DIMENSIONS = 4
MAXIMUM_ELEMENTS = 2**63 - 1  # counts are signed 64-bit in native code
SMALLEST_ENTRY_BYTES = 8 + 1 + 4 + 8 + 4 + 8

READABLE: Mapping[int, StorageType] = {storage.ggml_id: storage for storage in StorageType}

# Other ids that ggml has given out, so that a refusal can name them.
UNREADABLE: Mapping[int, str] = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the table. ``offset`` counts from the start of the data section; ``size`` is in bytes."""

    name: str
    storage: StorageType
    shape: tuple[int, ...]
    offset: int
    size: int


def read_tensors(cursor: Cursor, count: int, alignment: int, data: memoryview) -> dict[str, Tensor]:
    """Read the ``count`` entries at ``cursor`` and view each tensor in ``data``, the bytes of the entire file.

    Shapes are turned round to row-major. Nothing of the tensors' own bytes is touched.

    Raises :class:`ModelFileError` when an entry contradicts itself, another one, or the size of the file, and
    :class:`UnsupportedFeature` for a storage type nybble has no decoder for.
    """
    if count > MAXIMUM_TENSORS or count * SMALLEST_ENTRY_BYTES > cursor.remaining:
        cursor.fail(
            "header",
            f"claims {count} tensors; at most {MAXIMUM_TENSORS} are read, and the {cursor.remaining} bytes that follow "
            f"can describe {cursor.remaining // SMALLEST_ENTRY_BYTES}",
        )
    entries: dict[str, _Entry] = {}
    for number in range(count):
        entry = _read_entry(cursor, number, alignment)
        if entry.name in entries:
            cursor.fail(entry.name, "this tensor appears twice")
        entries[entry.name] = entry
    if not entries:
        return {}
    data_start = cursor.position + -cursor.position % alignment
    _check_extents(cursor.file, list(entries.values()), data_start, len(data))
    return {name: _view(entry, data_start, data, cursor.file) for name, entry in entries.items()}


def _read_entry(cursor: Cursor, number: int, alignment: int) -> _Entry:
    name = read_name(cursor, f"tensor {number}", MAXIMUM_NAME_BYTES)
    dimensions = cursor.u32(name)
    if not 1 <= dimensions <= MAXIMUM_DIMENSIONS:
        cursor.fail(name, f"{dimensions} dimensions; expected 1 to {MAXIMUM_DIMENSIONS}", cursor.position - 4)
    extents = [cursor.u64(name) for _ in range(dimensions)]
    if 0 in extents:
        cursor.fail(name, f"an extent of 0 in the dimensions {extents}")
    elements = cursor.multiply(name, *extents, limit=MAXIMUM_ELEMENTS)
    storage = _read_storage(cursor, name)
    if extents[0] % storage.block_elements:
        cursor.fail(name, f"rows of {extents[0]} elements; {storage.name} needs a multiple of {storage.block_elements}")
    size = cursor.multiply(name, elements // storage.block_elements, storage.block_bytes, limit=MAXIMUM_ELEMENTS)
    offset = cursor.u64(name)
    if offset % alignment:
        cursor.fail(name, f"offset {offset} is not a multiple of the alignment {alignment}", cursor.position - 8)
    return _Entry(name, storage, tuple(reversed(extents)), offset, size)


def _read_storage(cursor: Cursor, name: str) -> StorageType:
    number = cursor.u32(name)
    storage = READABLE.get(number)
    if storage is not None:
        return storage
    readable = ", ".join(known.name for known in READABLE.values())
    if number in UNREADABLE:
        raise UnsupportedFeature(
            f"{cursor.file}: {name}: stored as {UNREADABLE[number]}, which nybble does not read; it reads {readable}"
        )
    cursor.fail(name, f"unknown storage type {number}; known are {readable}", cursor.position - 4)


def _check_extents(file: str, entries: list[_Entry], data_start: int, file_bytes: int) -> None:
    """Every tensor inside the file, no two of them over each other."""
    in_order = sorted(entries, key=lambda entry: entry.offset)
    last = max(in_order, key=lambda entry: entry.offset + entry.size)
    needed = data_start + last.offset + last.size
    if needed > file_bytes:
        raise ModelFileError(
            file,
            last.name,
            f"ends at byte {needed} but the file has {file_bytes} bytes ({needed - file_bytes} are missing); the "
            "download did not finish or the file is damaged, fetch it again",
        )
    for before, after in pairwise(in_order):
        if before.offset + before.size > after.offset:
            raise ModelFileError(
                file,
                after.name,
                f"begins at offset {after.offset}, inside {before.name}, which takes {before.size} bytes from offset "
                f"{before.offset}",
            )


def _view(entry: _Entry, data_start: int, data: memoryview, file: str) -> Tensor:
    row_bytes = entry.shape[-1] // entry.storage.block_elements * entry.storage.block_bytes
    rows = np.frombuffer(data, np.uint8, entry.size, data_start + entry.offset).reshape(-1, row_bytes)
    return Tensor(entry.name, entry.storage, entry.shape, rows, file)
