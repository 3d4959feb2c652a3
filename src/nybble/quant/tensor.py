"""A named weight as it lies in its file: a typed view of bytes, never a copy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .storage import Storage


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A weight tensor.

    ``shape`` is row-major, outermost dimension first: a linear is ``(N, K)``, a norm ``(K,)``; blocks run along the
    last dimension. ``rows`` is a read-only uint8 array of shape ``(number of rows, bytes per row)`` viewing the mapped
    file. ``file`` is what error messages call the file.
    """

    name: str
    storage: Storage
    shape: tuple[int, ...]
    rows: NDArray[np.uint8]
    file: str

    @property
    def elements(self) -> int:
        """Number of weights."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def stored_bytes(self) -> int:
        """Bytes the tensor takes in its file."""
        return int(self.rows.nbytes)

    def take_rows(self, order: NDArray[np.intp]) -> Tensor:
        """The same tensor with its rows in another order (a copy of these rows only)."""
        return replace(self, rows=self.rows[order])
