"""The protocol-buffers wire format, read through the checked cursor and without copying.

A message is a run of fields, each a varint of ``number · 8 + wire type`` and a value of that type.
Layout: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from .cursor import Cursor

LONGEST_VARINT = 10
LARGEST_NUMBER = (1 << 29) - 1
MAXIMUM_TEXT_BYTES = 1 << 16  # of a name; documentation is never decoded


class WireType(enum.IntEnum):
    """How a field's value is delimited. Groups (3 and 4), which no proto3 file has, are refused."""

    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    FIXED32 = 5


_WIRE_TYPES = {int(wire_type): wire_type for wire_type in WireType}


@dataclass(slots=True)
class Field:
    """One field of a message.

    ``start`` is where its key begins in the file and ``end`` where its value ends, so that a writer can copy what it
    does not change. ``value`` is the number of a VARINT or fixed-width field (unsigned) and 0 for LENGTH, whose bytes
    are ``content``.
    """

    number: int
    wire_type: WireType
    start: int
    end: int
    value: int
    content: Cursor


def fields(message: Cursor, what: str) -> Iterator[Field]:
    """The fields of ``message`` in file order; ``what`` is the message, for errors.

    Raises :class:`~nybble.errors.ModelFileError` for a varint that does not end, a field number or wire type the format
    does not have, and a value that leaves the message.
    """
    while message.position < message.end:
        start = message.position
        key = varint(message, what)
        number, wire = key >> 3, _WIRE_TYPES.get(key & 7)
        if not 1 <= number <= LARGEST_NUMBER:
            message.fail(what, f"has the field number {number}; not a protobuf message, or damaged", start)
        value, content = 0, message
        if wire is WireType.LENGTH:
            content = message.sub_range(varint(message, what), what)
        elif wire is WireType.VARINT:
            value = varint(message, what)
        elif wire is WireType.FIXED64:
            value = message.u64(what)
        elif wire is WireType.FIXED32:
            value = message.u32(what)
        else:
            message.fail(what, f"field {number} has the wire type {key & 7}; not a protobuf message, or damaged", start)
        yield Field(number, wire, start, message.position, value, content)


def varint(message: Cursor, what: str) -> int:
    """An unsigned number of at most 64 bits, seven to a byte, low ones first."""
    data, start = message.data, message.position
    if start < message.end and data[start] < 128:
        message.position = start + 1
        return data[start]
    result = 0
    for place in range(min(LONGEST_VARINT, message.end - start)):
        octet = data[start + place]
        result |= (octet & 127) << (7 * place)
        if octet < 128:
            if result >= 1 << 64:
                message.fail(what, "a varint of more than 64 bits; damaged")
            message.position = start + place + 1
            return result
    if message.end - start < LONGEST_VARINT:
        message.fail(what, f"a varint does not end before {message.boundary}; truncated or damaged")
    message.fail(what, f"a varint of more than {LONGEST_VARINT} bytes; damaged")


def signed(value: int) -> int:
    """The int64 (or int32) that a varint field holds: two's complement of 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def expect(field: Field, wire_type: WireType, what: str) -> Field:
    """``field`` if it has ``wire_type``; else raises :class:`~nybble.errors.ModelFileError`."""
    if field.wire_type is not wire_type:
        field.content.fail(
            what, f"field {field.number} has the wire type {field.wire_type}; expected {wire_type}", field.start
        )
    return field


def number(field: Field, what: str) -> int:
    """The signed value of a varint field."""
    return signed(expect(field, WireType.VARINT, what).value)


def text(field: Field, what: str, limit: int = MAXIMUM_TEXT_BYTES) -> str:
    """The UTF-8 text of a LENGTH field, refused above ``limit`` bytes."""
    content = expect(field, WireType.LENGTH, what).content
    return content.text(content.remaining, what, limit)


def varints(field: Field, what: str, limit: int) -> list[int]:
    """The signed values of a repeated integer field, packed or one by one; refused above ``limit`` values."""
    if field.wire_type is WireType.VARINT:
        return [signed(field.value)]
    content = expect(field, WireType.LENGTH, what).content
    values: list[int] = []
    while content.remaining:
        if len(values) >= limit:
            content.fail(what, f"has more than {limit} values")
        values.append(signed(varint(content, what)))
    return values
