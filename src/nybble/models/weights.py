"""The tensors of a checkpoint on their way into a graph: each checked when taken, none left behind."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, UnsupportedFeature
from ..formats.checkpoint import Checkpoint
from ..quant.tensor import Tensor


class Weights:
    """``taken`` are the tensors asked for so far, by name. ``elsewhere`` names tensors that were read already."""

    def __init__(self, checkpoint: Checkpoint, elsewhere: Collection[str] = ()) -> None:
        self.taken: dict[str, Tensor] = {}
        self._checkpoint = checkpoint
        self._elsewhere = frozenset(elsewhere)

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint.tensors

    def matrix(self, name: str, outputs: int, features: int) -> str:
        """Take the tensor ``name`` of shape (outputs, features) and return its name."""
        return self._take(name, (outputs, features)).name

    def vector(self, name: str, length: int) -> str:
        """Take the tensor ``name`` of shape (length,), which must be stored as floats, and return its name."""
        tensor = self._take(name, (length,))
        if not tensor.storage.is_float:
            raise UnsupportedFeature(
                f"{tensor.file}: {name} is stored as {tensor.storage.name}; "
                "nybble runs models whose norms and biases are F32, F16 or BF16"
            )
        return name

    def reorder(self, name: str, order: NDArray[np.intp]) -> None:
        """Put the rows of a taken matrix, or the elements of a taken vector, into another order (a copy)."""
        tensor = self.taken[name]
        if len(tensor.shape) == 2:
            self.taken[name] = tensor.take_rows(order)
        else:
            elements = tensor.rows.reshape(len(order), -1)
            self.taken[name] = replace(tensor, rows=elements[order].reshape(tensor.rows.shape))
        self._checkpoint.release()

    def refuse_leftovers(self) -> None:
        """Raise :class:`~nybble.errors.UnsupportedFeature` if the file has tensors that nobody took."""
        left = [name for name in self._checkpoint.tensors if name not in self.taken and name not in self._elsewhere]
        if left:
            shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
            raise UnsupportedFeature(
                f"{self._checkpoint.path}: has tensors that a {self._checkpoint.architecture} model does not use in "
                f"nybble: {shown}; leaving them out would change its answers"
            )

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._checkpoint.tensors.get(name)
        if tensor is None:
            raise ModelFileError(self._checkpoint.path, name, f"this tensor is missing; expected shape {shape}")
        if tensor.shape != shape:
            raise ModelFileError(tensor.file, name, f"has shape {tensor.shape}; expected {shape}")
        self.taken[name] = tensor
        return tensor
