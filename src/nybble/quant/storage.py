"""The storage types of weights: how many elements share a block, and how many bytes a block takes.

Ids and layouts are those of GGUF (ggml's ``ggml_type`` numbering).
"""

from __future__ import annotations

import enum


class StorageType(enum.Enum):
    """One storage type. The value is ``(ggml id, elements per block, bytes per block)``."""

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
