"""The storage types of weights: how many elements share a block, and how many bytes a block takes."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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

    A block is an fp16 scale, an fp16 offset if ``has_offsets``, then ``block`` codes of ``bits`` bits (of 4-bit ones
    the earlier in the low nibble). weight = scale · (code - 2^(bits - 1)), or scale · code + offset. The last block of
    a row may have padding of any value behind K.
    """

    bits: int
    block: int
    has_offsets: bool

    def __post_init__(self) -> None:
        if self.bits not in (4, 8) or self.block not in (16, 32, 64, 128, 256):
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


Storage = StorageType | BlockStorage
