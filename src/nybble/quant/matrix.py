"""The canonical quantised matrix: what the native packer starts from, in numpy, and the oracle it is tested against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, UnsupportedFeature
from .blocks import row_chunks
from .packing_rules import PackedFormat, packed_as
from .tensor import Tensor
from .unpack import UnpackedRows, unpack_rows


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedMatrix:
    """N rows of K codes of ``bits`` bits (2, 4 or 8), one scale and perhaps one offset per ``block`` along K.

    ``codes``: uint8, one code per byte whatever ``bits`` is, shape (N, K rounded up to whole blocks); what is behind
    ``columns`` = K is padding. ``scales``, ``offsets``: fp16, or fp32 where these are wide, (N, blocks).
    """

    bits: int
    block: int
    columns: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.floating]
    offsets: NDArray[np.floating] | None

    def dequantise(self) -> NDArray[np.float64]:
        """The weights, fp64 (N, K), without any rounding.

        ``scale · (code - 2^(bits - 1))`` for a symmetric matrix, ``scale · code + offset`` for one with offsets.
        """
        blocks = self.codes.reshape(*self.scales.shape, self.block).astype(np.float64)
        scales = self.scales.astype(np.float64)[..., None]
        if self.offsets is None:
            weights = scales * (blocks - (1 << (self.bits - 1)))
        else:
            weights = scales * blocks + self.offsets.astype(np.float64)[..., None]
        return weights.reshape(self.codes.shape)[:, : self.columns]


def to_matrix(tensor: Tensor) -> QuantisedMatrix:
    """Convert ``tensor``, of shape (N, K), by the rules of :func:`packed_as`.

    Scales and offsets are rounded to the nearest fp16, ties to even, unless the tensor keeps them wide. Zero points
    become offsets of -scale · zero point, computed in fp32 with the scale as rounded.

    Raises :class:`ModelFileError` when one is NaN or infinite or becomes so in fp16, :class:`UnsupportedFeature` when
    the tensor is not a matrix or its weights are floats.
    """
    packed = packed_as(tensor.storage)
    if len(tensor.shape) != 2 or packed.is_float:
        raise UnsupportedFeature(
            f"{tensor.file}: {tensor.name}: expected a matrix of quantised blocks, found {tensor.storage.name} of "
            f"shape {tensor.shape}"
        )
    rows, columns = tensor.shape
    blocks = -(-columns // packed.block)
    codes = np.empty((rows, blocks * packed.block), np.uint8)
    scales: NDArray[np.floating] = np.empty((rows, blocks), np.float32 if tensor.wide_scales else np.float16)
    offsets = np.empty_like(scales) if packed.has_offsets else None
    for chunk in row_chunks(tensor):
        unpacked = unpack_rows(tensor, chunk)
        codes[chunk] = _packed_codes(unpacked, packed, codes.shape[1])
        # A stored block becomes whole packed blocks, each with its scale.
        repeats = -(-unpacked.block // packed.block)
        scales[chunk] = _repeated(_kept(unpacked.scales, tensor, "scale", chunk.start), repeats, blocks)
        if offsets is not None:
            stored = unpacked.offsets
            if stored is None:
                factors = _kept(unpacked.scales, tensor, "scale", chunk.start).astype(np.float32)
                with np.errstate(over="ignore", invalid="ignore"):
                    stored = -(factors * unpacked.zero_point)
            offsets[chunk] = _repeated(_kept(stored, tensor, "offset", chunk.start), repeats, blocks)
    return QuantisedMatrix(packed.bits, packed.block, columns, codes, scales, offsets)


def _packed_codes(unpacked: UnpackedRows, packed: PackedFormat, columns: int) -> NDArray[np.uint8]:
    codes = unpacked.codes[:, :columns]
    if not packed.has_offsets and isinstance(unpacked.zero_point, int):
        codes = codes + np.uint8(packed.zero_point - unpacked.zero_point)
    return np.pad(codes, ((0, 0), (0, columns - codes.shape[1])))


def _repeated(values: NDArray[np.floating], repeats: int, blocks: int) -> NDArray[np.floating]:
    return np.repeat(values, repeats, axis=1)[:, :blocks]


def _kept(values: NDArray[np.float32], tensor: Tensor, noun: str, first_row: int) -> NDArray[np.floating]:
    with np.errstate(over="ignore"):
        kept: NDArray[np.floating] = values if tensor.wide_scales else values.astype(np.float16)
    if not np.isfinite(kept).all():
        row, block = np.argwhere(~np.isfinite(kept))[0]
        raise ModelFileError(
            tensor.file,
            f"{tensor.name} row {first_row + row}",
            f"the {noun} of block {block} is {values[row, block]}; it must be finite and at most 65504 (fp16)",
        )
    return kept
