"""What packing does to the weights of a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .blocks import row_chunks
from .matrix import to_matrix
from .packing_rules import packed_as
from .quantise import quantised
from .storage import StorageType
from .tensor import Tensor
from .unpack import floats, unpack_rows


@dataclass(frozen=True, slots=True)
class ConversionError:
    """The difference between packed and stored weights: RMS relative to the RMS of the weights, and the largest.

    Where weights are quantised already, only scales and offsets are rounded, each by at most 2⁻¹¹ of itself, or 2⁻²⁵
    where fp16 is subnormal; a zero point is an offset of -scale · zero point. So none of them moves by more than
    ``|code - zero point| · max(2⁻¹¹ · |scale|, 2⁻²⁵) + max(2⁻¹¹ · |offset|, 2⁻²⁵)``.
    """

    relative_rms: float
    maximum_absolute: float


def is_changed(tensor: Tensor) -> bool:
    """Whether packing changes weights of ``tensor``: unless :func:`packed_as` calls its type exact, or it keeps fp32
    scales, of which an offset of -scale · zero point is rounded by at most 2⁻²⁴ of itself.
    """
    return tensor.quantised_as is not None or not (packed_as(tensor.storage).exact or tensor.wide_scales)


def conversion_error(tensor: Tensor) -> ConversionError:
    """Compare :func:`to_matrix` of ``tensor`` with the weights it stores, both in fp64 so that only packing counts.

    Zero unless :func:`is_changed`. Works through a few rows at a time. Raises as :func:`to_matrix`.
    """
    if not is_changed(tensor):
        return ConversionError(0.0, 0.0)
    squared_error = squared_weight = largest = 0.0
    for chunk in row_chunks(tensor):
        part = tensor.matrix_of_rows(chunk)
        packed = to_matrix(quantised(part)).dequantise()
        if isinstance(part.storage, StorageType) and part.storage.is_float:
            weights = floats(part.storage, part.rows).astype(np.float64)
        else:
            weights = unpack_rows(tensor, chunk).weights(np.float64)[:, : part.shape[1]]
        difference = packed - weights
        squared_error += float(np.square(difference).sum())
        squared_weight += float(np.square(weights).sum())
        largest = max(largest, float(np.abs(difference).max()))
    return ConversionError(math.sqrt(squared_error / squared_weight) if squared_weight > 0 else 0.0, largest)
