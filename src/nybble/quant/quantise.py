"""Floats to blocks of 4 and 8 bits, bit for bit as ggml's reference quantisers do it.

Formulas: ``quantize_row_q4_0_ref`` and ``quantize_row_q8_0_ref`` in ggml-quants.c.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .blocks import row_chunks
from .storage import StorageType
from .tensor import Tensor
from .unpack import floats

_BLOCK = 32


def quantised(tensor: Tensor) -> Tensor:
    """The tensor that is packed for ``tensor``: itself, or its floats quantised to ``quantised_as``, Q4_0 or Q8_0.

    A number that is not finite makes the scale of its block such, which packing refuses.
    """
    target = tensor.quantised_as
    if target is None:
        return tensor
    assert isinstance(tensor.storage, StorageType) and tensor.storage.is_float
    encode = {StorageType.Q4_0: _q4_0, StorageType.Q8_0: _q8_0}[target]
    n, k = tensor.shape
    rows = np.empty((n, k // _BLOCK * target.block_bytes), np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        for chunk in row_chunks(tensor):
            blocks = floats(tensor.storage, tensor.rows[chunk]).astype(np.float32, copy=False).reshape(-1, _BLOCK)
            rows[chunk] = encode(blocks).reshape(-1, rows.shape[1])
    return replace(tensor, storage=target, rows=rows, quantised_as=None)


def _q4_0(blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Of (B, 32): the scale makes the number of the largest size exactly -8 steps."""
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scales = extreme / np.float32(-8)
    codes = np.minimum(np.trunc(blocks * _inverse(scales) + np.float32(8.5)), 15).astype(np.uint8)
    return np.concatenate([_halves(scales), codes[:, :16] | codes[:, 16:] << 4], axis=1)


def _q8_0(blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Of (B, 32): the scale makes the number of the largest size 127 steps; halves are rounded away from zero."""
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    steps = blocks * _inverse(scales)
    sizes = np.abs(steps)
    whole = np.floor(sizes)
    whole += sizes - whole >= np.float32(0.5)
    codes = np.copysign(whole, steps).astype(np.int8)
    return np.concatenate([_halves(scales), codes.view(np.uint8)], axis=1)


def _inverse(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)


def _halves(scales: NDArray[np.float32]) -> NDArray[np.uint8]:
    return scales.astype("<f2").view(np.uint8)
