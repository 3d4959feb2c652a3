"""The angular steps of rotary position embedding, and the two ways of stretching them that nybble knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions count ``factor`` times slower (https://arxiv.org/abs/2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class FrequencyFactors:
    """Each frequency is divided by its own factor; how GGUF stores Llama 3's scaling. ``factors`` has head_dim / 2."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | FrequencyFactors


def inverse_frequencies(head_dim: int, base: float, scaling: RopeScaling | None) -> NDArray[np.float64]:
    """Radians per position of each feature pair, shape (head_dim / 2,): base^(-2i / head_dim), then scaled.

    Formula: https://arxiv.org/abs/2104.09864, section 3.2.2.
    """
    frequencies: NDArray[np.float64] = base ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    match scaling:
        case LinearScaling():
            return frequencies / scaling.factor
        case FrequencyFactors():
            return frequencies / np.asarray(scaling.factors, np.float64)
        case None:
            return frequencies
