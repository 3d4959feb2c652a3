"""The decoder of every storage type: stored bytes to the fp32 weights they mean.

Bit for bit the values of ggml's reference decoders (``dequantize_row_*`` in ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .storage import Storage, StorageType
from .tensor import Tensor
from .unpack import unpack_rows

_CHUNK_ELEMENTS = 1 << 18  # weights decoded at a time: temporaries stay near the size of a cache


def row_chunks(tensor: Tensor) -> Iterator[slice]:
    """Slices that cover the rows of ``tensor`` a few at a time, so that temporaries stay small."""
    count, row_elements = tensor.rows.shape[0], tensor.shape[-1]
    step = max(1, _CHUNK_ELEMENTS // row_elements)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def dequantise(tensor: Tensor) -> NDArray[np.float32]:
    """The weights of ``tensor`` as a new fp32 array of its shape.

    Computed in fp32 as ggml does: ``scale · (code - zero point)``, then the offset added. NaN and infinities in the
    file come out as they are.
    """
    weights = np.empty((tensor.rows.shape[0], tensor.shape[-1]), np.float32)
    for chunk in row_chunks(tensor):
        _decode(tensor.storage, tensor.rows[chunk], weights[chunk])
    return weights.reshape(tensor.shape)


def _decode(storage: Storage, rows: NDArray[np.uint8], weights: NDArray[np.float32]) -> None:
    """Decode ``rows``, uint8 (R, bytes per row), into ``weights``, fp32 (R, K)."""
    if storage is StorageType.F32:
        weights[...] = rows.view("<f4")
    elif storage is StorageType.F16:
        weights[...] = rows.view("<f2")
    elif storage is StorageType.BF16:
        # A bf16 is the upper half of an fp32.
        np.left_shift(rows.view("<u2"), 16, out=weights.view(np.uint32), dtype=np.uint32)
    else:
        unpacked = unpack_rows(storage, rows)
        decoded = np.empty(unpacked.codes.shape, np.float32)
        np.subtract(unpacked.codes, unpacked.zero_point, out=decoded, dtype=np.float32)
        blocks = decoded.reshape(*unpacked.scales.shape, unpacked.block)
        with np.errstate(over="ignore", invalid="ignore"):
            blocks *= unpacked.scales[..., None]
            if unpacked.offsets is not None:
                blocks += unpacked.offsets[..., None]
        weights[...] = decoded[:, : weights.shape[1]]
