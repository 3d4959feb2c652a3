"""The key-value section of a GGUF file.

Each entry is a key (u64 length, UTF-8), a u32 kind, and a value; an array is a u32 element kind, a u64 count and that
many elements. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import ModelFileError, UnsupportedFeature
from .checkpoint import MetadataValue
from .cursor import Cursor

MAXIMUM_KEYS = 1 << 16
MAXIMUM_KEY_BYTES = 65535  # the format's own limit
MAXIMUM_STRING_BYTES = 64 << 20  # embedded tokenizer.json files reach 33 MB
MAXIMUM_ARRAY_ELEMENTS = 1 << 22  # of one file; vocabulary, scores, types and merges of the largest models: 1.4 million
SMALLEST_ENTRY_BYTES = 8 + 1 + 4 + 1  # key length, one byte of key, kind, one byte of value


class Kind(enum.IntEnum):
    """The kinds of metadata values, by the numbers the file uses."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOLEAN = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


_SCALARS: Mapping[Kind, Callable[[Cursor, str], int | float | bool]] = {
    Kind.U8: Cursor.u8,
    Kind.I8: Cursor.i8,
    Kind.U16: Cursor.u16,
    Kind.I16: Cursor.i16,
    Kind.U32: Cursor.u32,
    Kind.I32: Cursor.i32,
    Kind.F32: Cursor.f32,
    Kind.BOOLEAN: Cursor.boolean,
    Kind.U64: Cursor.u64,
    Kind.I64: Cursor.i64,
    Kind.F64: Cursor.f64,
}

_ARRAY_DTYPES: Mapping[Kind, str] = {
    Kind.U8: "<u1",
    Kind.I8: "<i1",
    Kind.U16: "<u2",
    Kind.I16: "<i2",
    Kind.U32: "<u4",
    Kind.I32: "<i4",
    Kind.F32: "<f4",
    Kind.BOOLEAN: "<u1",
    Kind.U64: "<u8",
    Kind.I64: "<i8",
    Kind.F64: "<f8",
}

_INTEGERS = frozenset({Kind.U8, Kind.I8, Kind.U16, Kind.I16, Kind.U32, Kind.I32, Kind.U64, Kind.I64})


@dataclass(frozen=True, slots=True)
class _Expectation:
    """What a well-known key must hold. Anything else would be read as something it is not."""

    described: str
    kinds: frozenset[Kind]
    array: bool = False


_STRING = _Expectation("a string", frozenset({Kind.STRING}))
_STRINGS = _Expectation("an array of strings", frozenset({Kind.STRING}), array=True)
_INTEGER = _Expectation("an integer", _INTEGERS)
_EXPECTED: Mapping[str, _Expectation] = {
    "general.architecture": _STRING,
    "general.alignment": _Expectation("a u32", frozenset({Kind.U32})),
    "split.no": _INTEGER,
    "split.count": _INTEGER,
    "split.tensors.count": _INTEGER,
    "tokenizer.ggml.model": _STRING,
    "tokenizer.ggml.pre": _STRING,
    "tokenizer.ggml.tokens": _STRINGS,
    "tokenizer.ggml.merges": _STRINGS,
    "tokenizer.ggml.scores": _Expectation("an array of floats", frozenset({Kind.F32}), array=True),
    "tokenizer.ggml.token_type": _Expectation("an array of integers", _INTEGERS, array=True),
    "tokenizer.chat_template": _STRING,
}


def read_metadata(cursor: Cursor, count: int) -> dict[str, MetadataValue]:
    """Read ``count`` entries at ``cursor`` and leave it behind the last.

    Strings must be valid UTF-8, as the format says: a lossy decode would let two tokens become one.

    Raises :class:`ModelFileError` for anything malformed, duplicated, or larger than a model can need, and
    :class:`UnsupportedFeature` for arrays of arrays, which no model uses.
    """
    if count > MAXIMUM_KEYS or count * SMALLEST_ENTRY_BYTES > cursor.remaining:
        cursor.fail(
            "header",
            f"claims {count} metadata entries; at most {MAXIMUM_KEYS} are read, and the {cursor.remaining} bytes that "
            f"follow can hold {cursor.remaining // SMALLEST_ENTRY_BYTES}",
        )
    metadata: dict[str, MetadataValue] = {}
    elements_left = MAXIMUM_ARRAY_ELEMENTS
    for number in range(count):
        key = read_name(cursor, f"key {number}", MAXIMUM_KEY_BYTES)
        if key in metadata:
            cursor.fail(key, "this key appears twice")
        value = _read_value(cursor, key, elements_left)
        if isinstance(value, list):
            elements_left -= len(value)
        metadata[key] = value
    _check_vocabulary(cursor.file, metadata)
    return metadata


def read_name(cursor: Cursor, what: str, limit: int) -> str:
    """A key or tensor name: 1 to ``limit`` bytes of UTF-8, printable, since errors and terminals will show it."""
    start = cursor.position
    name = cursor.prefixed_text(what, limit)
    if not name:
        cursor.fail(what, "the name is empty", start)
    if not name.isprintable():
        cursor.fail(what, f"the name {name[:64]!r} has characters that cannot be printed", start)
    return name


def _read_kind(cursor: Cursor, what: str) -> Kind:
    number = cursor.u32(what)
    try:
        return Kind(number)
    except ValueError:
        cursor.fail(what, f"unknown value kind {number}; known are 0 to {max(Kind):d}", cursor.position - 4)


def _read_value(cursor: Cursor, key: str, elements_left: int) -> MetadataValue:
    kind = _read_kind(cursor, key)
    array = kind is Kind.ARRAY
    if array:
        kind = _read_kind(cursor, key)
    expectation = _EXPECTED.get(key)
    if expectation is not None and (array != expectation.array or kind not in expectation.kinds):
        cursor.fail(key, f"expected {expectation.described}, found {'an array of ' if array else ''}{kind.name}")
    if array:
        return _read_array(cursor, key, kind, elements_left)
    if kind is Kind.STRING:
        return cursor.prefixed_text(key, MAXIMUM_STRING_BYTES)
    return _SCALARS[kind](cursor, key)


def _read_array(cursor: Cursor, key: str, kind: Kind, elements_left: int) -> MetadataValue:
    if kind is Kind.ARRAY:
        raise UnsupportedFeature(f"{cursor.file}: {key}: an array of arrays; nybble reads arrays of plain values")
    count = cursor.u64(key)
    if count > elements_left:
        cursor.fail(
            key, f"an array of {count} elements; the arrays of one file may have {MAXIMUM_ARRAY_ELEMENTS} in all"
        )
    if kind is Kind.STRING:
        return cursor.prefixed_texts(count, key, MAXIMUM_STRING_BYTES)
    numbers = cursor.numbers(_ARRAY_DTYPES[kind], count, key)
    if kind is not Kind.BOOLEAN:
        values: list[int] | list[float] = numbers.tolist()
        return values
    octets: list[int] = numbers.tolist()
    if any(octet > 1 for octet in octets):
        cursor.fail(key, f"a boolean is 0 or 1, found {max(octets)}")
    return [octet == 1 for octet in octets]


def _check_vocabulary(file: str, metadata: Mapping[str, MetadataValue]) -> None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        values = metadata.get(key)
        if isinstance(tokens, list) and isinstance(values, list) and len(values) != len(tokens):
            raise ModelFileError(file, key, f"expected one value for each of {len(tokens)} tokens, found {len(values)}")
