"""The storage types of weights: how many elements share a block, and how many bytes a block takes."""

from __future__ import annotations

import enum
from dataclasses import dataclass

CODE_BITS = (2, 4, 8)
"""Widths of codes that kernels exist for."""


class StorageType(enum.Enum):
    """A type of GGUF files. The value is ``(ggml id, elements per block, bytes per block)``; layouts are ggml's."""

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    BF16 = (30, 1, 2)

    @property
    def ggml_id(self) -> int:
        """The number GGUF files use for this type."""
        return self.value[0]

    @property
    def block_elements(self) -> int:
        """Elements that share a block."""
        return self.value[1]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.value[2]

    @property
    def bits_per_weight(self) -> float:
        """Bits each weight costs, scales included."""
        return 8 * self.block_bytes / self.block_elements

    @property
    def is_float(self) -> bool:
        """True for F32, F16 and BF16: no blocks, no scales."""
        return self.block_elements == 1


@dataclass(frozen=True, slots=True)
class BlockStorage:
    """Plain blocks of any size, as other formats and benchmarks have them.

    A block is an fp16 scale, an fp16 offset if ``has_offsets``, then ``block`` codes of ``bits`` bits (2, 4 or 8), of
    those that share a byte the earlier in the lower bits. weight = scale · (code - 2^(bits - 1)), or
    scale · code + offset. The last block of a row may have padding of any value behind K.
    """

    bits: int
    block: int
    has_offsets: bool

    def __post_init__(self) -> None:
        if self.bits not in CODE_BITS or self.block not in (16, 32, 64, 128, 256):
            raise ValueError(f"no such storage: {self.bits} bits in blocks of {self.block}")

    @property
    def name(self) -> str:
        """``W4B128`` for 4 bits in blocks of 128; with an A behind it when blocks have offsets."""
        return f"W{self.bits}B{self.block}{'A' if self.has_offsets else ''}"

    @property
    def block_elements(self) -> int:
        """Elements that share a block."""
        return self.block

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block * self.bits // 8 + (4 if self.has_offsets else 2)

    @property
    def bits_per_weight(self) -> float:
        """Bits each weight costs, scales included."""
        return 8 * self.block_bytes / self.block

    @property
    def is_float(self) -> bool:
        """Never: these are codes."""
        return False


class ZeroPoints(enum.Enum):
    """How zero points are stored; the value is what the name of a storage ends in.

    ``ABSENT``: all are 2^(bits - 1). ``PACKED``: codes as wide as those of weights, low bits first, each row padded to
    whole bytes. ``FLOAT``: numbers of the scales' type.
    """

    ABSENT = ""
    PACKED = "-Z"
    FLOAT = "-ZF"


@dataclass(frozen=True, slots=True)
class SeparateStorage:
    """Codes, scales and zero points in arrays of their own, in the order of ONNX's ``com.microsoft::MatMulNBits``.

    A row is ``ceil(K / block)`` blocks of ``block`` codes of ``bits`` bits (2, 4 or 8), low bits first, padded to a
    whole byte; as many ``scales`` (F32, F16 or BF16); and zero points. weight = scale · (code - zero point). ``block``
    is a multiple of 16, or at least K: then a row has one scale. Codes behind K are padding of any value.
    """

    bits: int
    block: int
    scales: StorageType
    zero_points: ZeroPoints

    def __post_init__(self) -> None:
        if self.bits not in CODE_BITS or not 0 < self.block < 1 << 32 or not self.scales.is_float:
            raise ValueError(f"no such storage: {self.bits} bits in blocks of {self.block}, scales {self.scales.name}")

    @property
    def name(self) -> str:
        """``W4B128-F32``, with ``-Z`` behind it for packed zero points and ``-ZF`` for floats."""
        return f"W{self.bits}B{self.block}-{self.scales.name}{self.zero_points.value}"

    @property
    def block_elements(self) -> int:
        """Elements that share a scale."""
        return self.block

    @property
    def bits_per_weight(self) -> float:
        """Bits each weight costs, scales and zero points included."""
        scale = 8 * self.scales.block_bytes
        zero_point = {ZeroPoints.ABSENT: 0, ZeroPoints.PACKED: self.bits, ZeroPoints.FLOAT: scale}
        return self.bits + (scale + zero_point[self.zero_points]) / self.block

    @property
    def is_float(self) -> bool:
        """Never: these are codes."""
        return False

    def row_bytes(self, columns: int) -> tuple[int, ...]:
        """Bytes of a row of K = ``columns`` in each array: codes, scales and, unless absent, zero points.

        Raises ValueError for a block that is neither a multiple of 16 nor the whole row.
        """
        if self.block % 16 != 0 and self.block < columns:
            raise ValueError(f"blocks of {self.block}: expected a multiple of 16, or all of K = {columns}")
        blocks = -(-columns // self.block)
        codes = -(-blocks * self.block * self.bits // 8)
        scales = blocks * self.scales.block_bytes
        if self.zero_points is ZeroPoints.ABSENT:
            return codes, scales
        return codes, scales, -(-blocks * self.bits // 8) if self.zero_points is ZeroPoints.PACKED else scales


InBlocks = StorageType | BlockStorage
"""A row is blocks that hold everything, one behind the other."""

Storage = InBlocks | SeparateStorage
