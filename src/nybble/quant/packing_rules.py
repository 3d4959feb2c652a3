"""How each storage type is packed for the kernels, as data.

Kernels know 2-, 4- and 8-bit codes with one fp16 scale per block, and optionally one fp16 offset. Types whose scales
are not fp16 to begin with (the K types multiply an fp16 by an integer) are rounded on the way; they are not exact. Nor
are zero points, which become offsets. Linears on fp32 activations read fp32 scales and offsets as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .storage import BlockStorage, SeparateStorage, Storage, StorageType, ZeroPoints


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """What a kernel sees of a weight matrix.

    ``bits`` per code, ``block`` codes along K that share a scale, and whether each block has an offset besides. A block
    of 1 means plain floats of ``bits`` bits, without scales. ``exact`` is true when packing changes no weight.
    """

    bits: int
    block: int
    has_offsets: bool
    exact: bool

    @property
    def is_float(self) -> bool:
        """True when the weights stay floats: no codes, no scales."""
        return self.block == 1

    @property
    def zero_point(self) -> int:
        """The code that stands for 0 in a symmetric format; 0 where offsets are used instead."""
        return 0 if self.has_offsets or self.is_float else 1 << (self.bits - 1)

    def __str__(self) -> str:
        if self.is_float:
            return f"{self.bits}-bit float"
        return f"{self.bits}-bit, block {self.block}{', offsets' if self.has_offsets else ''}"


PACKED_AS: Mapping[StorageType, PackedFormat] = {
    StorageType.F32: PackedFormat(bits=32, block=1, has_offsets=False, exact=True),
    StorageType.F16: PackedFormat(bits=16, block=1, has_offsets=False, exact=True),
    StorageType.BF16: PackedFormat(bits=16, block=1, has_offsets=False, exact=True),
    StorageType.Q4_0: PackedFormat(bits=4, block=32, has_offsets=False, exact=True),
    StorageType.Q4_1: PackedFormat(bits=4, block=32, has_offsets=True, exact=True),
    StorageType.Q5_0: PackedFormat(bits=8, block=32, has_offsets=False, exact=True),
    StorageType.Q5_1: PackedFormat(bits=8, block=32, has_offsets=True, exact=True),
    StorageType.Q8_0: PackedFormat(bits=8, block=32, has_offsets=False, exact=True),
    StorageType.Q4_K: PackedFormat(bits=4, block=32, has_offsets=True, exact=False),
    StorageType.Q5_K: PackedFormat(bits=8, block=32, has_offsets=True, exact=False),
    StorageType.Q6_K: PackedFormat(bits=8, block=16, has_offsets=False, exact=False),
}


def packed_block(block: int) -> int:
    """The block that stored blocks of ``block`` are split into, their scale repeated: the largest that divides them.

    A block that is no multiple of 16 is a whole row; it is padded to a multiple of 32.
    """
    whole = block if block % 16 == 0 else -(-block // 32) * 32
    return next(size for size in (256, 128, 64, 32, 16) if whole % size == 0)


def packed_as(storage: Storage) -> PackedFormat:
    """What weights of ``storage`` are packed as."""
    if isinstance(storage, BlockStorage):
        return PackedFormat(storage.bits, storage.block, storage.has_offsets, exact=True)
    if isinstance(storage, SeparateStorage):
        has_offsets = storage.zero_points is not ZeroPoints.ABSENT
        exact = storage.scales is StorageType.F16 and not has_offsets
        return PackedFormat(storage.bits, packed_block(storage.block), has_offsets, exact)
    return PACKED_AS[storage]
