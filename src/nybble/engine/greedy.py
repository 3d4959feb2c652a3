"""Choosing the likeliest token, which needs no numpy: importing it takes as long as reading a short prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

_BEST_ISA = _native.available_isas()[0]
"""Whose kernels look at logits; all find the same."""


def highest_logit(logits: memoryview | NDArray[np.float32]) -> int | None:
    """Index of the highest of ``logits``, fp32 (vocabulary,), the first of equals; None if any is not finite."""
    return _native.highest_logit(_BEST_ISA, logits)


class GreedySampler:
    """Takes the likeliest token; of equals the first."""

    def sample(self, logits: memoryview, history: Sequence[int]) -> int:
        """Choose the next token id by ``logits``, fp32 (vocabulary,), which a session found to be finite."""
        highest = highest_logit(logits)
        assert highest is not None
        return highest
