"""RoPE's angular steps, recovered from the tables of cosines and sines that ONNX models carry."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..rope import inverse_frequencies
from .movement import DoesNotFit

FloatArray = NDArray[np.float64]

_TABLE_ERROR = {np.dtype(np.float32): 2e-3, np.dtype(np.float16): 4e-3}
"""What an entry may be off: tables are made in fp32, whose angles are wrong by 2⁻²⁴ of themselves."""
_BASE_ERROR = 1e-5
"""Relative; frequencies that near to base^(-2i / head_dim) for a round base are taken for exactly that."""


def frequencies_of_tables(cosines: NDArray[np.floating], sines: NDArray[np.floating]) -> tuple[FloatArray, float]:
    """Radians per position, fp64 (head_dim / 2,), and the length of every (cosine, sine), from tables (positions,
    head_dim / 2).

    The turn from one position to the next gives a first estimate, and positions twice as far each a better one.
    Raises :class:`DoesNotFit` for tables that no fixed frequencies make.
    """
    if cosines.ndim != 2 or cosines.shape != sines.shape or cosines.shape[0] < 2 or cosines.shape[1] < 1:
        raise DoesNotFit(f"its cosines have shape {cosines.shape} and its sines {sines.shape}")
    tolerance = _TABLE_ERROR.get(cosines.dtype, 1e-2)
    cosine, sine = cosines.astype(np.float64), sines.astype(np.float64)
    if not (np.isfinite(cosine).all() and np.isfinite(sine).all()):
        raise DoesNotFit("its cosines or sines are not finite")
    length = float(np.hypot(cosine[0], sine[0]).max())
    frequencies = np.arctan2(sine[1], cosine[1])
    position = 2
    while position < len(cosine):
        angle = np.arctan2(sine[position], cosine[position])
        turns = np.rint((frequencies * position - angle) / (2 * np.pi))
        frequencies = (angle + 2 * np.pi * turns) / position
        position *= 2
    exact = _of_round_base(frequencies)
    chosen = frequencies if exact is None else exact
    # Far positions have the error of fp32 angles, which grows with them.
    allowed = length * (tolerance + np.arange(len(cosine))[:, None] * np.abs(chosen) * 2.0**-22)
    angles = np.arange(len(cosine))[:, None] * chosen
    off = np.maximum(np.abs(length * np.cos(angles) - cosine), np.abs(length * np.sin(angles) - sine)) > allowed
    if off.any() or not length > 0:
        position, pair = (int(index) for index in np.argwhere(off)[0]) if off.any() else (0, 0)
        raise DoesNotFit(
            f"its cosines and sines do not turn by a fixed angle per position (first at position {position}, pair "
            f"{pair}); nybble runs models whose rotation does not depend on the length"
        )
    return chosen, length


def _of_round_base(frequencies: FloatArray) -> FloatArray | None:
    """The frequencies base^(-2i / head_dim) if these are they for a whole ``base``, which the tables only round."""
    pairs = len(frequencies)
    if pairs < 2 or not (frequencies > 0).all() or not frequencies[-1] < 1:
        return None
    base = frequencies[-1] ** (-pairs / (pairs - 1))
    digits = 10.0 ** max(0, np.floor(np.log10(base)) - 3)
    exact = inverse_frequencies(2 * pairs, float(np.rint(base / digits) * digits), None)
    return exact if np.allclose(exact, frequencies, rtol=_BASE_ERROR, atol=0) else None
