"""What packing does to the weights of a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .blocks import row_chunks
from .matrix import to_matrix
from .packing_rules import packed_as
from .tensor import Tensor
from .unpack import unpack_rows


@dataclass(frozen=True, slots=True)
class ConversionError:
    """The difference between packed and stored weights: RMS relative to the RMS of the weights, and the largest.

    Only scales and offsets are rounded, each by at most 2⁻¹¹ of itself, or 2⁻²⁵ where fp16 is subnormal; a zero point
    is an offset of -scale · zero point. So no weight moves by more than
    ``|code - zero point| · max(2⁻¹¹ · |scale|, 2⁻²⁵) + max(2⁻¹¹ · |offset|, 2⁻²⁵)``.
    """

    relative_rms: float
    maximum_absolute: float


def conversion_error(tensor: Tensor) -> ConversionError:
    """Compare :func:`to_matrix` of ``tensor`` with the weights it stores, both in fp64 so that only packing counts.

    Zero for the types :func:`packed_as` calls exact, and for floats. Works through a few rows at a time.
    Raises as :func:`to_matrix`.
    """
    if packed_as(tensor.storage).exact:
        return ConversionError(0.0, 0.0)
    squared_error = squared_weight = largest = 0.0
    for chunk in row_chunks(tensor):
        part = tensor.matrix_of_rows(chunk)
        packed = to_matrix(part).dequantise()
        weights = unpack_rows(tensor, chunk).weights(np.float64)[:, : part.shape[1]]
        difference = packed - weights
        squared_error += float(np.square(difference).sum())
        squared_weight += float(np.square(weights).sum())
        largest = max(largest, float(np.abs(difference).max()))
    return ConversionError(math.sqrt(squared_error / squared_weight) if squared_weight > 0 else 0.0, largest)
