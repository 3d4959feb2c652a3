"""Makes stored tensors: random block bytes, with every fp16 factor under control."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nybble.quant.storage import BlockStorage, Storage, StorageType
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
    for bits in (4, 8)
    for block in (16, 32, 64, 128, 256)
    for has_offsets in (False, True)
)


def factor_places(storage: Storage) -> tuple[int, ...]:
    """Byte offsets in a block where an fp16 lies."""
    if isinstance(storage, BlockStorage):
        return (0, 2) if storage.has_offsets else (0,)
    return FACTORS[storage]


def random_tensor(storage: Storage, shape: tuple[int, ...], seed: int, largest: float | None = 1.0) -> Tensor:
    """Random codes in every bit; factors uniform in ±``largest``, or any bits at all when it is None."""
    random = np.random.default_rng(seed)
    blocks = -(-shape[-1] // storage.block_elements)
    rows = int(np.prod(shape[:-1], dtype=int))
    octets = random.integers(0, 256, (rows, blocks, storage.block_bytes), np.uint8)
    if largest is not None:
        for place in factor_places(storage):
            factors = random.uniform(-largest, largest, (rows, blocks, 1)).astype("<f2")
            octets[:, :, place : place + 2] = factors.view(np.uint8)
    return as_tensor(storage, shape, octets)


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
