"""The decoder of every storage type: stored bytes to the fp32 weights they mean.

Bit for bit the values of ggml's reference decoders (``dequantize_row_*`` in ggml-quants.c), and of ONNX Runtime's for
scales apart: ``scale · (code - zero point)`` in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .storage import StorageType
from .tensor import Tensor
from .unpack import floats, unpack_rows

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
    columns = tensor.shape[-1]
    weights = np.empty((tensor.rows.shape[0], columns), np.float32)
    for chunk in row_chunks(tensor):
        if isinstance(tensor.storage, StorageType) and tensor.storage.is_float:
            weights[chunk] = floats(tensor.storage, tensor.rows[chunk])
        else:
            weights[chunk] = unpack_rows(tensor, chunk).weights(np.float32)[:, :columns]
    return weights.reshape(tensor.shape)
