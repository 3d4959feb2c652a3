"""A named weight as it lies in its file: a typed view of bytes, never a copy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .storage import Storage, StorageType


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A weight tensor.

    ``shape`` is row-major, outermost dimension first: a linear is ``(N, K)``, a norm ``(K,)``; blocks run along the
    last dimension. ``rows`` is a read-only uint8 array of shape ``(number of rows, bytes per row)`` viewing the mapped
    file. ``file`` is what error messages call the file. Where scales lie apart (:class:`SeparateStorage`), ``rows`` are
    the codes, and ``scales`` and ``zero_points`` (if stored) hold as many rows of bytes of their own.
    ``quantised_as`` is what floats become when they are packed, if they do not stay as they are. ``wide_scales`` says
    that scales and offsets are packed as fp32, not rounded to fp16.
    """

    name: str
    storage: Storage
    shape: tuple[int, ...]
    rows: NDArray[np.uint8]
    file: str
    scales: NDArray[np.uint8] | None = None
    zero_points: NDArray[np.uint8] | None = None
    quantised_as: StorageType | None = None
    wide_scales: bool = False

    @property
    def packed_from(self) -> Storage:
        """The storage that packing starts from."""
        return self.storage if self.quantised_as is None else self.quantised_as

    @property
    def arrays(self) -> tuple[NDArray[np.uint8], ...]:
        """All that is stored: the rows and, where they lie apart, scales and zero points."""
        return tuple(array for array in (self.rows, self.scales, self.zero_points) if array is not None)

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes the tensor takes in its file."""
        return sum(array.nbytes for array in self.arrays)

    def take_rows(self, order: NDArray[np.intp]) -> Tensor:
        """The same tensor with its rows in another order (a copy of these rows only)."""
        return self._select(order)

    def matrix_of_rows(self, selection: slice | NDArray[np.intp]) -> Tensor:
        """The matrix of some rows: views for a slice, a copy for numbers of rows."""
        selected = self._select(selection)
        return replace(selected, shape=(len(selected.rows), self.shape[-1]))

    def _select(self, selection: slice | NDArray[np.intp]) -> Tensor:
        def some(array: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
            return None if array is None else array[selection]

        return replace(self, rows=self.rows[selection], scales=some(self.scales), zero_points=some(self.zero_points))
