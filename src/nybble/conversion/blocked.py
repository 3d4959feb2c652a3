"""From any quantised tensor to the arrays of ``MatMulNBits``: codes, scales and perhaps float zero points.

Layout: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from ..quant.blocks import row_chunks
from ..quant.packing_rules import packed_as
from ..quant.storage import Storage
from ..quant.tensor import Tensor
from ..quant.unpack import UnpackedRows, unpack_rows


@dataclass(frozen=True, slots=True, eq=False)
class BlockedMatrix:
    """N rows of K codes of ``bits`` bits (4 or 8): weight = scale · (code - zero point).

    ``codes``: uint8 (N, blocks, block · bits / 8), low bits first. ``scales``, ``zero_points``: fp32 (N, blocks); where
    there are none, all are 2^(bits - 1).
    """

    bits: int
    block: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.float32] | None


def is_requantised(storage: Storage, wanted: bool) -> bool:
    """Whether weights of ``storage`` are rounded to 8 bits: those with offsets, if ``wanted``, or if they have more
    than 4 bits, with which ONNX Runtime takes no float zero points."""
    packed = packed_as(storage)
    return packed.has_offsets and (wanted or packed.bits == 8)


def blocked_matrix(tensor: Tensor, *, requantise: bool) -> BlockedMatrix:
    """The quantised matrix ``tensor`` (N, K), K a multiple of its block.

    Codes and scales are those of the file. Types with offsets get zero points of -offset / scale, which fp32 rounds by
    at most 2^-24 of themselves; all else is exact. To ``requantise`` is to round to 8 bits without zero points instead:
    each weight by at most 1/254 of the largest in its block, scales being fp16.
    Raises :class:`ModelFileError` for scales or offsets that are NaN or infinite.
    """
    rows = tensor.shape[0]
    packed = packed_as(tensor.storage)
    bits = 8 if requantise else packed.bits
    first = unpack_rows(tensor, slice(0, 1))
    block, blocks = first.block, first.scales.shape[1]
    codes = np.empty((rows, blocks, block * bits // 8), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    zero_points = np.empty_like(scales) if packed.has_offsets and not requantise else None
    for chunk in row_chunks(tensor):
        unpacked = unpack_rows(tensor, chunk)
        by_block = unpacked.codes.reshape(-1, blocks, block)
        scales[chunk] = unpacked.scales
        if requantise:
            by_block, scales[chunk] = _rounded(unpacked.weights(np.float32).reshape(by_block.shape))
        elif zero_points is None:
            by_block = by_block + np.uint8((1 << (bits - 1)) - _middle(unpacked))
        else:
            by_block, scales[chunk], zero_points[chunk] = _with_zero_points(unpacked, by_block)
        codes[chunk] = by_block if bits == 8 else by_block[..., ::2] | by_block[..., 1::2] << 4
    for noun, values in (("scale", scales), ("offset", zero_points)):
        if values is not None and not np.isfinite(values).all():
            row, place = np.argwhere(~np.isfinite(values))[0]
            raise ModelFileError(tensor.file, f"{tensor.name} row {row}", f"the {noun} of block {place} is not finite")
    return BlockedMatrix(bits, block, codes, scales, zero_points)


def _rounded(weights: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Codes (rows, blocks, block) of 8 bits around 128, and scales (rows, blocks), rounded up to what fp16 holds."""
    exact = np.abs(weights).max(axis=2) / np.float32(127)
    with np.errstate(over="ignore", invalid="ignore"):
        halves = exact.astype(np.float16)
        halves = np.where(halves < exact, np.nextafter(halves, np.float16(np.inf)), halves)
        scales = halves.astype(np.float32)
        steps = np.rint(weights / np.where(scales == 0, np.float32(1), scales)[..., None])
        return (steps + 128).astype(np.uint8), scales


def _middle(unpacked: UnpackedRows) -> int:
    assert isinstance(unpacked.zero_point, int)
    return unpacked.zero_point


def _with_zero_points(
    unpacked: UnpackedRows, codes: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """Codes, scales and zero points that mean what scales and offsets do."""
    scales, offsets = unpacked.scales, unpacked.offsets
    assert offsets is not None
    # All weights of a block without a scale are its offset: 1 times it, and no zero point.
    constant = scales == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        zero_points = np.where(constant, np.float32(0), -offsets / scales)
    return np.where(constant[..., None], np.uint8(1), codes), np.where(constant, offsets, scales), zero_points
