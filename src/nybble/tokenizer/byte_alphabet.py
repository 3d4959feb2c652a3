"""The alphabet byte-level vocabularies write bytes in: one printable character for each of the 256 bytes.

Bytes that are printable in Latin-1 stand for themselves; the others, in order, become the characters from U+0100 on
(the mapping of the GPT-2 release).
"""

from __future__ import annotations

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))

CHARACTER_OF_BYTE: tuple[str, ...] = tuple(
    chr(byte) if byte in _PRINTABLE else chr(0x100 + _OTHERS.index(byte)) for byte in range(256)
)
BYTE_OF_CHARACTER: dict[str, int] = {character: byte for byte, character in enumerate(CHARACTER_OF_BYTE)}

BYTES_OF_TEXT = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
"""Bytes that occur in valid UTF-8."""
