"""Makes stored tensors: random bytes, with every scale, offset and zero point under control."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nybble.quant.storage import CODE_BITS, BlockStorage, InBlocks, SeparateStorage, Storage, StorageType, ZeroPoints
from nybble.quant.tensor import Tensor

# Byte offsets in a block where an fp16 lies, from the format's description.
FACTORS: Mapping[StorageType, tuple[int, ...]] = {
    StorageType.Q4_0: (0,),
    StorageType.Q4_1: (0, 2),
    StorageType.Q5_0: (0,),
    StorageType.Q5_1: (0, 2),
    StorageType.Q8_0: (0,),
    StorageType.Q4_K: (0, 2),
    StorageType.Q5_K: (0, 2),
    StorageType.Q6_K: (208,),
}
QUANTISED = tuple(FACTORS)
PLAIN = tuple(
    BlockStorage(bits, block, has_offsets)
    for bits in CODE_BITS
    for block in (16, 32, 64, 128, 256)
    for has_offsets in (False, True)
)

SEPARATE = tuple(
    SeparateStorage(bits, block, scales, zero_points)
    for bits in CODE_BITS
    for block, scales in zip(
        (16, 32, 64, 128, 256, 48, 100), (StorageType.F32, StorageType.F16, StorageType.BF16) * 3, strict=False
    )
    for zero_points in ZeroPoints
)
"""Every width, block and kind of zero points, in blocks that kernels know and in others; 100 is a whole row."""


def factor_places(storage: InBlocks) -> tuple[int, ...]:
    """Byte offsets in a block where an fp16 lies."""
    if isinstance(storage, BlockStorage):
        return (0, 2) if storage.has_offsets else (0,)
    return FACTORS[storage]


def random_tensor(storage: Storage, shape: tuple[int, ...], seed: int, largest: float | None = 1.0) -> Tensor:
    """Random codes in every bit; factors uniform in ±``largest``, or any bits at all when it is None."""
    random = np.random.default_rng(seed)
    if isinstance(storage, SeparateStorage):
        return _random_separate(storage, shape, random, largest)
    blocks = -(-shape[-1] // storage.block_elements)
    rows = int(np.prod(shape[:-1], dtype=int))
    octets = random.integers(0, 256, (rows, blocks, storage.block_bytes), np.uint8)
    if largest is not None:
        for place in factor_places(storage):
            factors = random.uniform(-largest, largest, (rows, blocks, 1)).astype("<f2")
            octets[:, :, place : place + 2] = factors.view(np.uint8)
    return as_tensor(storage, shape, octets)


def _random_separate(
    storage: SeparateStorage, shape: tuple[int, ...], random: np.random.Generator, largest: float | None
) -> Tensor:
    rows = int(np.prod(shape[:-1], dtype=int))
    arrays = [random.integers(0, 256, (rows, count), np.uint8) for count in storage.row_bytes(shape[-1])]
    if largest is not None:
        count = arrays[1].shape[1] // storage.scales.block_bytes
        arrays[1] = stored_floats(storage.scales, random.uniform(-largest, largest, (rows, count)))
        if storage.zero_points is ZeroPoints.FLOAT:
            arrays[2] = stored_floats(storage.scales, random.uniform(0, 1 << storage.bits, (rows, count)))
    return Tensor("weight", storage, shape, arrays[0], "toy.onnx", *arrays[1:])


def stored_floats(storage: StorageType, values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """``values`` (R, n) as rows of F32, F16 or BF16; those of BF16 are cut off, not rounded."""
    if storage is StorageType.BF16:
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").view(np.uint8)
    return values.astype("<f4" if storage is StorageType.F32 else "<f2").view(np.uint8)


def as_tensor(storage: Storage, shape: tuple[int, ...], octets: NDArray[np.uint8]) -> Tensor:
    """A read-only tensor at an odd address, as a mapped file may give one."""
    row_bytes = -(-shape[-1] // storage.block_elements) * storage.block_bytes
    shifted = np.frombuffer(b"\xaa" + octets.tobytes(), np.uint8, offset=1)
    return Tensor("weight", storage, shape, shifted.reshape(-1, row_bytes), "toy.gguf")


def set_factor(tensor: Tensor, row: int, block: int, place: int, value: float) -> Tensor:
    """``tensor`` with the fp16 at byte ``place`` of one block replaced."""
    octets = tensor.rows.copy()
    start = block * tensor.storage.block_bytes + place
    octets[row, start : start + 2] = np.array([value], "<f2").view(np.uint8)
    return as_tensor(tensor.storage, tensor.shape, octets)
