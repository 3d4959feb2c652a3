"""From the bytes of quantised rows to codes, scales and offsets: the only place that knows the block layouts.

Layouts are those of ggml (``block_q4_0`` to ``block_q6_K`` in ggml-common.h) and of ONNX Runtime's ``MatMulNBits``;
numbers in them are little-endian. Every type comes out in one form: ``weight = scale · (code - zero_point) + offset``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .storage import BlockStorage, InBlocks, SeparateStorage, StorageType, ZeroPoints
from .tensor import Tensor

Float = TypeVar("Float", bound=np.floating)


@dataclass(frozen=True, slots=True, eq=False)
class UnpackedRows:
    """``codes``: uint8 (R, K rounded up to blocks). ``scales``, ``offsets``: fp32 (R, blocks); no ``offsets`` where the
    type has none. ``zero_point``: one for all, or fp32 (R, blocks).

    For the K types scales and offsets are the products of the block's fp16 factor and a 6- or 8-bit integer, which
    fp32 holds exactly.
    """

    codes: NDArray[np.uint8]
    zero_point: int | NDArray[np.float32]
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32] | None

    @property
    def block(self) -> int:
        """Codes that share a scale."""
        return int(self.codes.shape[1] // self.scales.shape[1])

    def weights(self, dtype: type[Float]) -> NDArray[Float]:
        """``scale · (code - zero_point) + offset`` computed in ``dtype``, (R, K rounded up to blocks)."""
        blocks = self.codes.reshape(*self.scales.shape, self.block)
        zero_point = self.zero_point if isinstance(self.zero_point, int) else self.zero_point[..., None]
        weights: NDArray[Float] = np.subtract(blocks, zero_point, dtype=dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(weights, self.scales[..., None], out=weights)
            if self.offsets is not None:
                np.add(weights, self.offsets[..., None], out=weights)
        return weights.reshape(self.codes.shape)


def unpack_rows(tensor: Tensor, selection: slice) -> UnpackedRows:
    """Unpack some rows of a quantised tensor. Copies; shapes as in :class:`UnpackedRows`."""
    part = tensor.matrix_of_rows(selection)
    if isinstance(part.storage, SeparateStorage):
        return _separate(part.storage, part)
    return _unpack_blocks(part.storage, part.rows)


def _unpack_blocks(storage: InBlocks, rows: NDArray[np.uint8]) -> UnpackedRows:
    number_of_rows = rows.shape[0]
    with np.errstate(invalid="ignore"):  # a stored infinity times a factor of 0
        blocks = rows.reshape(-1, storage.block_bytes)
        unpacked = _plain(storage, blocks) if isinstance(storage, BlockStorage) else _UNPACKERS[storage](blocks)
    return UnpackedRows(
        unpacked.codes.reshape(number_of_rows, -1),
        unpacked.zero_point,
        unpacked.scales.reshape(number_of_rows, -1),
        None if unpacked.offsets is None else unpacked.offsets.reshape(number_of_rows, -1),
    )


# The functions below take blocks, uint8 (B, bytes per block), and return codes (B, elements per block).


def _half(blocks: NDArray[np.uint8], start: int) -> NDArray[np.float32]:
    """The fp16 at byte ``start`` of each block, as fp32 (B, 1)."""
    return blocks[:, start : start + 2].view("<f2").astype(np.float32)


def _nibbles(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(B, n) bytes to (B, 2n) codes: all low halves, then all high halves."""
    return np.concatenate((octets & 15, octets >> 4), axis=1)


def _fifth_bits(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(B, 4) bytes to (B, 32) codes: bit i belongs to element i and is worth 16."""
    return np.unpackbits(octets, axis=1, bitorder="little") << np.uint8(4)


def _low_bits_first(octets: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """(R, n) bytes to (R, 8n / bits) codes."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes: NDArray[np.uint8] = (octets[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(octets), -1)


def _separate(storage: SeparateStorage, tensor: Tensor) -> UnpackedRows:
    assert tensor.scales is not None
    scales = floats(storage.scales, tensor.scales)
    blocks = scales.shape[1]
    codes = _low_bits_first(tensor.rows, storage.bits)[:, : blocks * storage.block]
    if storage.zero_points is ZeroPoints.ABSENT:
        return UnpackedRows(codes, 1 << (storage.bits - 1), scales, None)
    assert tensor.zero_points is not None
    if storage.zero_points is ZeroPoints.FLOAT:
        zero_points = floats(storage.scales, tensor.zero_points)
    else:
        zero_points = _low_bits_first(tensor.zero_points, storage.bits)[:, :blocks].astype(np.float32)
    return UnpackedRows(codes, zero_points, scales, None)


def floats(storage: StorageType, octets: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Rows of F32, F16 or BF16, uint8 (R, bytes per row), as a new fp32 array (R, numbers)."""
    octets = np.ascontiguousarray(octets)
    if storage is StorageType.BF16:
        # A bf16 is the upper half of an fp32.
        wide: NDArray[np.uint32] = np.left_shift(octets.view("<u2"), 16, dtype=np.uint32)
        return wide.view(np.float32)
    return octets.view("<f4" if storage is StorageType.F32 else "<f2").astype(np.float32)


# Where in a block its fp16 factors lie.
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


def factors(storage: StorageType, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The fp16 factors stored in blocks of a quantised type, uint8 (R, bytes per row), as fp32 (factors, 1): whatever
    they are, so are the weights."""
    blocks = rows.reshape(-1, storage.block_bytes)
    return np.concatenate([_half(blocks, start) for start in FACTORS[storage]])


def _plain(storage: BlockStorage, blocks: NDArray[np.uint8]) -> UnpackedRows:
    codes = _low_bits_first(blocks[:, 4 if storage.has_offsets else 2 :], storage.bits)
    if storage.has_offsets:
        return UnpackedRows(codes, 0, _half(blocks, 0), _half(blocks, 2))
    return UnpackedRows(codes, 1 << (storage.bits - 1), _half(blocks, 0), None)


def _q4_0(blocks: NDArray[np.uint8]) -> UnpackedRows:
    return UnpackedRows(_nibbles(blocks[:, 2:]), 8, _half(blocks, 0), None)


def _q4_1(blocks: NDArray[np.uint8]) -> UnpackedRows:
    return UnpackedRows(_nibbles(blocks[:, 4:]), 0, _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: NDArray[np.uint8]) -> UnpackedRows:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return UnpackedRows(codes, 16, _half(blocks, 0), None)


def _q5_1(blocks: NDArray[np.uint8]) -> UnpackedRows:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return UnpackedRows(codes, 0, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: NDArray[np.uint8]) -> UnpackedRows:
    # Flipping the sign bit of an int8 adds 128.
    return UnpackedRows(blocks[:, 2:] ^ np.uint8(0x80), 128, _half(blocks, 0), None)


def _six_bit_factors(octets: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The 12 bytes that hold 8 scales and 8 minimums of 6 bits each: two fp32 arrays (B, 8).

    Bytes 0..3 and 4..7 hold scales and minimums 0..3 in their low 6 bits, and in their top 2 bits the top 2 bits of
    scales and minimums 4..7, whose low 4 bits are the low and high halves of bytes 8..11.
    """
    first, second, low = octets[:, 0:4], octets[:, 4:8], octets[:, 8:12]
    scales = np.concatenate((first & 63, (low & 15) | (first >> 6 << 4)), axis=1)
    minimums = np.concatenate((second & 63, (low >> 4) | (second >> 6 << 4)), axis=1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _paired_nibbles(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(B, 128) bytes to (B, 8, 32) codes: each 32 bytes hold two sub-blocks, low halves first."""
    groups = octets.reshape(-1, 4, 1, 32)
    return np.concatenate((groups & 15, groups >> 4), axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: NDArray[np.uint8]) -> UnpackedRows:
    scales, minimums = _six_bit_factors(blocks[:, 4:16])
    codes = _paired_nibbles(blocks[:, 16:])
    return UnpackedRows(codes.reshape(-1, 256), 0, _half(blocks, 0) * scales, -(_half(blocks, 2) * minimums))


def _q5_k(blocks: NDArray[np.uint8]) -> UnpackedRows:
    scales, minimums = _six_bit_factors(blocks[:, 4:16])
    # Bit s of byte i is the fifth bit of element i of sub-block s.
    high = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    codes = _paired_nibbles(blocks[:, 48:]) | ((high & np.uint8(1)) << np.uint8(4))
    return UnpackedRows(codes.reshape(-1, 256), 0, _half(blocks, 0) * scales, -(_half(blocks, 2) * minimums))


def _q6_k(blocks: NDArray[np.uint8]) -> UnpackedRows:
    # Each half block of 128: 64 bytes of low nibbles (all low halves, then all high), 32 bytes of four 2-bit tops.
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate((low & 15, low >> 4), axis=2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    codes = low | ((high & np.uint8(3)) << np.uint8(4))
    factors = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return UnpackedRows(codes.reshape(-1, 256), 32, _half(blocks, 208) * factors, None)


_UNPACKERS: Mapping[StorageType, Callable[[NDArray[np.uint8]], UnpackedRows]] = {
    StorageType.Q4_0: _q4_0,
    StorageType.Q4_1: _q4_1,
    StorageType.Q5_0: _q5_0,
    StorageType.Q5_1: _q5_1,
    StorageType.Q8_0: _q8_0,
    StorageType.Q4_K: _q4_k,
    StorageType.Q5_K: _q5_k,
    StorageType.Q6_K: _q6_k,
}
