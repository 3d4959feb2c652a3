"""Builds small GGUF files byte by byte, so that any field can lie.

Independent of nybble and of the gguf package: written from the format's description alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOLEAN, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOLEAN: "B",
    U64: "Q",
    I64: "q",
    F64: "d",
}


def string(text: str | bytes, length: int | None = None) -> bytes:
    """A u64 length and the bytes; ``length`` lies about it."""
    octets = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(octets) if length is None else length) + octets


def scalar(kind: int, value: float | str | bytes) -> bytes:
    """The bytes of one value of ``kind``."""
    if kind == STRING:
        assert isinstance(value, str | bytes)
        return string(value)
    return struct.pack("<" + _CODES[kind], value)


def key(name: str | bytes, kind: int, value: float | str | bytes) -> bytes:
    """One metadata entry."""
    return string(name) + struct.pack("<I", kind) + scalar(kind, value)


def array_key(
    name: str, kind: int, values: Sequence[float | str | bytes], count: int | None = None, payload: bytes | None = None
) -> bytes:
    """One array entry; ``count`` and ``payload`` lie about the number of elements and replace their bytes."""
    body = b"".join(scalar(kind, value) for value in values) if payload is None else payload
    return string(name) + struct.pack("<IIQ", ARRAY, kind, len(values) if count is None else count) + body


def tensor_entry(
    name: str | bytes, extents: Sequence[int], storage: int, offset: int, dimensions: int | None = None
) -> bytes:
    """One line of the tensor table; ``extents`` fastest first; ``dimensions`` lies about their number."""
    count = len(extents) if dimensions is None else dimensions
    return string(name) + struct.pack(f"<I{len(extents)}QIQ", count, *extents, storage, offset)


ARCHITECTURE = key("general.architecture", STRING, "toy")


@dataclass
class ToyGGUF:
    """A file as a list of encoded parts. ``None`` for a count means the true one."""

    keys: list[bytes] = field(default_factory=lambda: [ARCHITECTURE])
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    key_count: int | None = None
    tensor_count: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        """Everything before the padding in front of the data section."""
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        key_count = len(self.keys) if self.key_count is None else self.key_count
        counts = struct.pack("<IQQ", self.version, tensor_count, key_count)
        return self.magic + counts + b"".join(self.keys) + b"".join(self.tensors)

    def build(self) -> bytes:
        """The bytes of the file."""
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        """Write the file to ``path`` and return it."""
        path.write_bytes(self.build())
        return path


def honest_toy() -> ToyGGUF:
    """A valid file of about 700 bytes of header with every kind of value and tensors of four storage types.

    ``matrix`` is F32 (2, 3); ``half`` is F16 (4,); ``quantised`` is Q4_0 (2, 32); ``cube`` is Q8_0 (2, 1, 32).
    """
    keys = [
        ARCHITECTURE,
        key("general.alignment", U32, 32),
        key("toy.u8", U8, 200),
        key("toy.i8", I8, -100),
        key("toy.u16", U16, 60000),
        key("toy.i16", I16, -30000),
        key("toy.i32", I32, -(2**30)),
        key("toy.f32", F32, 0.5),
        key("toy.boolean", BOOLEAN, 1),
        key("toy.u64", U64, 2**63),
        key("toy.i64", I64, -(2**62)),
        key("toy.f64", F64, 0.1),
        array_key("tokenizer.ggml.tokens", STRING, ["a", "bé", "", "😀"]),
        array_key("tokenizer.ggml.scores", F32, [0.0, -1.0, -2.5, -3.0]),
        array_key("tokenizer.ggml.token_type", I32, [1, 1, 3, 6]),
        array_key("toy.booleans", BOOLEAN, [0, 1]),
        array_key("toy.empty", U64, []),
    ]
    tensors = [
        tensor_entry("matrix", (3, 2), 0, 0),
        tensor_entry("half", (4,), 1, 32),
        tensor_entry("quantised", (32, 2), 2, 64),
        tensor_entry("cube", (32, 1, 2), 8, 128),
    ]
    data = bytearray(192 + 4)
    data[0:24] = struct.pack("<6f", *range(6))
    data[32:40] = struct.pack("<4e", 1.0, -2.0, 0.5, 65504.0)
    for start, size in ((64, 18), (82, 18), (128, 34), (162, 34)):
        data[start : start + 2] = struct.pack("<e", 0.25)
        data[start + 2 : start + size] = bytes((start + 37 * place) % 256 for place in range(size - 2))
    return ToyGGUF(keys, tensors, bytes(data))
