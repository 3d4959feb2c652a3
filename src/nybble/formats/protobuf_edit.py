"""Changing a protocol-buffers message on the wire: what is not changed stays as it is, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .cursor import Cursor
from .protobuf import Field, WireType, fields

Piece = bytes | memoryview
Edit = Callable[[Field], Sequence[Piece] | None]


def edit_message(message: Cursor, what: str, edit: Edit, added: Sequence[Piece] = ()) -> list[Piece] | None:
    """The bytes of ``message`` in pieces: ``edit`` gives what stands for a field, or None to keep it; ``added`` is
    appended. None if nothing changes.

    Raises :class:`~nybble.errors.ModelFileError` for what is not a message.
    """
    data, kept = message.data, message.position
    pieces: list[Piece] = []
    changed = bool(added)
    for field in fields(message, what):
        replacement = edit(field)
        if replacement is None:
            continue
        changed = True
        if kept < field.start:
            pieces.append(data[kept : field.start])
        pieces += replacement
        kept = field.end
    if not changed:
        return None
    if kept < message.end:
        pieces.append(data[kept : message.end])
    return [*pieces, *added]


def varint_bytes(value: int) -> bytes:
    """``value``, of at most 64 bits, as a varint: two's complement if negative."""
    value &= (1 << 64) - 1
    octets = bytearray()
    while value >= 128:
        octets.append(value & 127 | 128)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def varint_field(number: int, value: int) -> bytes:
    """A field whose value is a varint."""
    return varint_bytes(number << 3 | WireType.VARINT) + varint_bytes(value)


def length_field(number: int, pieces: Sequence[Piece]) -> list[Piece]:
    """A field whose value is a run of bytes: a text or a message."""
    length = sum(len(piece) for piece in pieces)
    return [varint_bytes(number << 3 | WireType.LENGTH) + varint_bytes(length), *pieces]


def text_field(number: int, text: str) -> bytes:
    """A field whose value is a text."""
    return b"".join(length_field(number, [text.encode()]))
