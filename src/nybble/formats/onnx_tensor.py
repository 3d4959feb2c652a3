"""``TensorProto``: an initialiser's type, shape and bytes, inline or external."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedFeature
from .cursor import Cursor
from .onnx_external import ExternalFiles
from .onnx_model import DataType, OnnxTensor
from .protobuf import Field, WireType, expect, fields, number, text, varints

MAXIMUM_DIMENSIONS = 8
MAXIMUM_ELEMENTS = 2**60
MAXIMUM_LISTED_NUMBERS = 1 << 20
"""Numbers that are written as varints, one by one: shapes and small constants. Weights are written as raw bytes."""

_NUMBER_DTYPES: Mapping[DataType, str] = {
    DataType.INT32: "<i4",
    DataType.INT64: "<i8",
    DataType.INT8: "<i1",
    DataType.UINT8: "<u1",
    DataType.INT4: "<u1",
    DataType.UINT4: "<u1",
    DataType.INT2: "<u1",
    DataType.UINT2: "<u1",
    DataType.BOOL: "<u1",
    DataType.FLOAT16: "<u2",
    DataType.BFLOAT16: "<u2",
}
"""What varints of ``int32_data`` (``int64_data`` for INT64) are bits of; narrower types are packed into bytes."""


@dataclass(frozen=True, slots=True)
class ExternalRange:
    """Bytes of an external file that a tensor lies in."""

    path: Path
    offset: int
    end: int
    tensor: str


class TensorReader:
    """Reads the tensors of one model; ``external_ranges`` collects where in other files they lie."""

    def __init__(self, external: ExternalFiles) -> None:
        self._external = external
        self.external_ranges: list[ExternalRange] = []

    def read(self, message: Cursor, what: str) -> OnnxTensor:
        """The tensor in ``message``, its bytes a view where the file has them as bytes.

        Raises :class:`~nybble.errors.ModelFileError` when type, shape and size contradict each other, and
        :class:`UnsupportedFeature` for an element type nybble does not read.
        """
        start = message.position
        name, kind, location = what, 0, 0
        dimensions: list[int] = []
        held: list[Field] = []
        external: list[Field] = []
        for field in fields(message, what):
            if field.number == 1:
                dimensions += varints(field, what, MAXIMUM_DIMENSIONS - len(dimensions))
                if len(dimensions) > MAXIMUM_DIMENSIONS:
                    message.fail(name, f"has more than {MAXIMUM_DIMENSIONS} dimensions")
            elif field.number == 2:
                kind = number(field, what)
            elif field.number == 3:
                raise UnsupportedFeature(f"{message.file}: {name}: is stored in segments, which nybble does not read")
            elif field.number in (4, 5, 6, 7, 9, 10, 11):
                held.append(field)
            elif field.number == 8:
                name = text(field, what) or what
            elif field.number == 13:
                external.append(field)
            elif field.number == 14:
                location = number(field, what)
        data_type = _data_type(message, name, kind)
        shape = tuple(dimensions)
        if any(extent < 0 for extent in shape):
            message.fail(name, f"has the shape {shape}", start)
        bits = message.multiply(name, *shape, data_type.bits, limit=MAXIMUM_ELEMENTS)
        size = -(-bits // 8)
        if location == 1:
            if held:
                message.fail(name, "has external data and data of its own", start)
            octets = self._external_octets(message, name, external, size)
        elif external or location != 0:
            message.fail(name, f"has a data location of {location}; expected 0 or 1", start)
        else:
            octets = _own_octets(message, name, data_type, held, size)
        if len(octets) != size:
            message.fail(name, f"has {len(octets)} bytes; its shape {shape} of {data_type.name} needs {size}", start)
        return OnnxTensor(name, data_type, shape, octets, message.file)

    def _external_octets(self, message: Cursor, name: str, entries: list[Field], size: int) -> NDArray[np.uint8]:
        values: dict[str, str] = {}
        for entry in entries:
            key = value = ""
            for field in fields(expect(entry, WireType.LENGTH, name).content, name):
                if field.number == 1:
                    key = text(field, f"{name}: external data", 256)
                elif field.number == 2:
                    value = text(field, f"{name}: external data", 4096)
            if key in values:
                message.fail(name, f"its external data have {key!r} twice", entry.start)
            # Other keys (a checksum, a base path of some writer) say nothing about where the bytes are.
            values[key] = value
        if "location" not in values:
            message.fail(name, "its external data have no location")
        offset = _decimal(message, name, "offset", values.get("offset", "0"))
        length = _decimal(message, name, "length", values.get("length", str(size)))
        octets = self._external.octets(values["location"], offset, length, name)
        path = self._external.path_of(values["location"])
        if length:
            self.external_ranges.append(ExternalRange(path, offset, offset + length, name))
        return octets


def _data_type(message: Cursor, name: str, kind: int) -> DataType:
    try:
        return DataType(kind)
    except ValueError:
        known = ", ".join(known.name for known in DataType)
        raise UnsupportedFeature(
            f"{message.file}: {name}: its elements are of type {kind}, which nybble does not read; it reads {known}"
        ) from None


def _decimal(message: Cursor, name: str, key: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= 19):
        message.fail(name, f"its external data have the {key} {value[:40]!r}; expected a number of bytes")
    return int(value)


def _own_octets(message: Cursor, name: str, data_type: DataType, held: list[Field], size: int) -> NDArray[np.uint8]:
    if not held:
        return np.empty(0, np.uint8)
    first = held[0]
    if any(field.number != first.number for field in held):
        message.fail(name, "has its data in fields of several types", first.start)
    if first.number == 9:
        if len(held) > 1:
            message.fail(name, "has raw data twice", held[1].start)
        content = expect(first, WireType.LENGTH, name).content
        return np.frombuffer(message.data, np.uint8, content.remaining, content.position)
    width = {4: (DataType.FLOAT, WireType.FIXED32), 10: (DataType.DOUBLE, WireType.FIXED64)}.get(first.number)
    if width is not None:
        if data_type is not width[0]:
            message.fail(name, f"is {data_type.name} but holds {width[0].name} numbers", first.start)
        return _fixed(message, name, held, width[1])
    numbers_in = 7 if data_type is DataType.INT64 else 5
    if first.number != numbers_in or data_type not in _NUMBER_DTYPES:
        message.fail(name, f"is {data_type.name} but holds numbers in field {first.number}", first.start)
    return _numbers(message, name, data_type, held)


def _fixed(message: Cursor, name: str, held: list[Field], wire_type: WireType) -> NDArray[np.uint8]:
    pieces: list[NDArray[np.uint8]] = []
    for field in held:
        if field.wire_type is WireType.LENGTH:
            content = field.content
            pieces.append(np.frombuffer(message.data, np.uint8, content.remaining, content.position))
        else:
            expect(field, wire_type, name)
            count = 4 if wire_type is WireType.FIXED32 else 8
            pieces.append(np.frombuffer(message.data, np.uint8, count, field.end - count))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _numbers(message: Cursor, name: str, data_type: DataType, held: list[Field]) -> NDArray[np.uint8]:
    numbers: list[int] = []
    for field in held:
        numbers += varints(field, name, MAXIMUM_LISTED_NUMBERS - len(numbers))
        if len(numbers) > MAXIMUM_LISTED_NUMBERS:
            message.fail(name, f"lists more than {MAXIMUM_LISTED_NUMBERS} numbers; expected raw data")
    dtype = np.dtype(_NUMBER_DTYPES[data_type])
    # The bits that count are the low ones; what a writer put above them does not matter.
    mask = (1 << (8 * dtype.itemsize)) - 1
    values = np.array([value & mask for value in numbers], np.uint64).astype(f"<u{dtype.itemsize}")
    return values.view(np.uint8)
