"""safetensors: a JSON header, then the bytes of the tensors, read without copying.

A u64 length, that many bytes of JSON (name → dtype, shape, data_offsets), then the data the offsets count from.
Layout: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from .cursor import Cursor
from .mapped_file import MappedFile

MAXIMUM_HEADER_BYTES = 100_000_000  # what the format's own library allows
MAXIMUM_TENSORS = 1 << 17
MAXIMUM_DIMENSIONS = 16
METADATA = "__metadata__"

BITS: Mapping[str, int] = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I64": 64,
    "U64": 64,
    "I32": 32,
    "U32": 32,
    "I16": 16,
    "U16": 16,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
}


@dataclass(frozen=True, slots=True, eq=False)
class SafeTensor:
    """A tensor of ``dtype``, as the format spells it. ``octets``, uint8 (bytes,), view the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    octets: NDArray[np.uint8]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class SafeTensors:
    """An opened file: its tensors by name, and the texts of its metadata."""

    path: Path
    tensors: Mapping[str, SafeTensor]
    metadata: Mapping[str, str]
    file_bytes: int


def open_safetensors(path: Path) -> SafeTensors:
    """Open the safetensors file at ``path``; reads the header only.

    Raises :class:`ModelFileError` for a header that is no such JSON, an unknown dtype, and tensors that leave the file,
    lie over each other, leave holes, or have not the size their shape and dtype call for.
    """
    return read_safetensors(MappedFile(path))


def read_safetensors(mapped: MappedFile) -> SafeTensors:
    """As :func:`open_safetensors`, of a file that is mapped already."""
    return _Reader(mapped).read()


class _Reader:
    def __init__(self, mapped: MappedFile) -> None:
        self.mapped = mapped
        self.file = str(mapped.path)

    def read(self) -> SafeTensors:
        cursor = Cursor(self.mapped.data, self.file)
        length = cursor.u64("header length")
        if length > MAXIMUM_HEADER_BYTES:
            cursor.fail("header length", f"is {length} bytes; at most {MAXIMUM_HEADER_BYTES} are read", 0)
        header = self._json(cursor.text(length, "header", MAXIMUM_HEADER_BYTES))
        data = np.frombuffer(self.mapped.data, np.uint8, cursor.remaining, cursor.position)
        metadata = self._metadata(header.pop(METADATA, {}))
        if len(header) > MAXIMUM_TENSORS:
            self._fail("header", f"has {len(header)} tensors; at most {MAXIMUM_TENSORS} are read")
        tensors, end = {}, 0
        for name, begin, stop, entry in sorted(
            (self._entry(name, entry) for name, entry in header.items()), key=lambda found: found[1:3]
        ):
            if begin != end:
                self._fail(name, f"begins at byte {begin} of the data; the tensor before it ends at {end}")
            if stop > len(data):
                self._fail(
                    name,
                    f"ends at byte {stop} of the data, but there are {len(data)}; the download did not finish or the "
                    "file is damaged, fetch it again",
                )
            tensors[name] = SafeTensor(name, entry["dtype"], tuple(entry["shape"]), data[begin:stop])
            end = stop
        if end != len(data):
            self._fail("data", f"has {len(data)} bytes, of which the tensors are {end}")
        return SafeTensors(self.mapped.path, tensors, metadata, self.mapped.size)

    def _json(self, text: str) -> dict[str, Any]:
        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) != len(pairs):
                self._fail("header", "has a name twice")
            return found

        try:
            header = json.loads(text, object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            self._fail("header", f"is no JSON: {error}")
        if not isinstance(header, dict):
            self._fail("header", "is no JSON object")
        return header

    def _metadata(self, entry: Any) -> dict[str, str]:
        if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
            self._fail(METADATA, "is not a list of texts")
        return entry

    def _entry(self, name: str, entry: Any) -> tuple[str, int, int, dict[str, Any]]:
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self._fail(name, "expected dtype, shape and data_offsets")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not _are_counts(shape) or len(shape) > MAXIMUM_DIMENSIONS:
            self._fail(name, f"its shape is no list of at most {MAXIMUM_DIMENSIONS} whole numbers")
        if not _are_counts(offsets) or len(offsets) != 2:
            self._fail(name, "its data_offsets are not two whole numbers")
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in BITS:
            self._fail(name, f"has the dtype {entry['dtype']!r}; known are {', '.join(BITS)}")
        begin, stop = offsets
        size = BITS[entry["dtype"]] // 8 * math.prod(shape)
        if stop - begin != size:
            self._fail(name, f"takes {stop - begin} bytes; {entry['dtype']} of shape {shape} takes {size}")
        return name, begin, stop, entry

    def _fail(self, where: str, problem: str) -> NoReturn:
        raise ModelFileError(self.file, where, problem)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)
