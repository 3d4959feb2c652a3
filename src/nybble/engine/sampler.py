"""Choosing the next token: filters and the random draw.

The order is fixed: repetition penalty, then either the argmax (temperature 0) or temperature, top-k, top-p, min-p and
one draw. Every token of a sequence costs one call, so nothing here sorts a whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidParameter, NumericalError
from .greedy import highest_logit
from .sampling import SamplingOptions

# A nucleus (top-p) is searched among this many of the most likely tokens first, then among four times as many, and so
# on: trained models rarely need more than the first round.
_FIRST_NUCLEUS = 256
_ROWS = 64  # of the table in which the largest values are searched
_BLOCK = 512  # entries summed as one when a token is drawn

_FLOAT32_RANGE = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


class Sampler:
    """Draws the tokens of one sequence. Holds its own PCG64 generator, so neighbours in a batch never disturb it."""

    def __init__(self, options: SamplingOptions) -> None:
        self.options = options
        # Negative seeds (legal in the OpenAI API) wrap to their two's complement.
        self._generator = np.random.PCG64(None if options.seed is None else options.seed % 2**64)
        self._scratch = np.empty(0, dtype=np.float64)

    def sample(self, logits: memoryview | NDArray[np.float32], history: Sequence[int] | NDArray[np.integer]) -> int:
        """Choose the next token id.

        ``logits`` has shape (vocabulary,) and is not changed. ``history`` holds the ids that the repetition penalty
        applies to (an integer array spares a conversion). Equal logits are decided in favour of the lowest id.
        Raises NumericalError when a logit is NaN or infinite.
        """
        given = np.asarray(logits)
        highest = _highest(given)
        penalized = self._penalized(given, history)
        if self.options.temperature == 0.0:
            return highest if penalized is given else int(penalized.argmax())
        identifiers, weights = self._filtered(penalized)
        # The 53 high bits as a fraction in [0, 1): PCG64's raw stream is frozen by numpy, Generator.random's is not.
        index = _drawn(weights, (int(self._generator.random_raw()) >> 11) * 2.0**-53)
        return index if identifiers is None else int(identifiers[index])

    def distribution(
        self, logits: NDArray[np.float32], history: Sequence[int] | NDArray[np.integer]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The tokens that pass the filters, ids ascending, and the probability of each; they sum to 1.

        Same arguments and errors as :meth:`sample`; draws nothing.
        """
        _highest(logits)
        logits = self._penalized(logits, history)
        if self.options.temperature == 0.0:
            return np.array([logits.argmax()], dtype=np.intp), np.ones(1)
        identifiers, weights = self._filtered(logits)
        everything = np.arange(len(logits), dtype=np.intp) if identifiers is None else identifiers
        return everything, weights / weights.sum()

    def _penalized(
        self, logits: NDArray[np.float32], history: Sequence[int] | NDArray[np.integer]
    ) -> NDArray[np.float32]:
        """Keskar et al. 2019 (CTRL): positive logits of seen tokens are divided by the penalty, others multiplied."""
        penalty = self.options.repetition_penalty
        if penalty == 1.0 or len(history) == 0:
            return logits
        seen = np.asarray(history, dtype=np.intp)
        if seen.min() < 0 or seen.max() >= len(logits):
            outside = seen[(seen < 0) | (seen >= len(logits))][0]
            raise InvalidParameter(f"history holds token id {outside}; ids must be from 0 to {len(logits) - 1}")
        values = logits[seen].astype(np.float64)
        penalized = logits.copy()
        # A token that occurs twice gets the same value twice: penalised once, whatever its count.
        penalized[seen] = np.where(values > 0, values / penalty, values * penalty).clip(*_FLOAT32_RANGE)
        return penalized

    def _filtered(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.intp] | None, NDArray[np.float64]]:
        """Ids (ascending; None for all) and unnormalised probabilities after all filters, at a temperature above 0.

        In fp64 throughout: the exp of two machines differs in the last bits, and fp64's last bits decide no draw.
        The weights may lie in the scratch buffer; the next call overwrites them.
        """
        options = self.options
        identifiers: NDArray[np.intp] | None = None
        if 0 < options.top_k < len(logits):
            identifiers = _largest(logits, options.top_k)
            logits = logits[identifiers]
        if len(self._scratch) != len(logits):
            self._scratch = np.empty(len(logits), dtype=np.float64)
        # The maximum is subtracted before the division, so that no temperature, however small, overflows upwards.
        weights = np.subtract(logits, float(logits.max()), out=self._scratch, dtype=np.float64)
        with np.errstate(over="ignore", under="ignore"):
            np.exp(np.divide(weights, options.temperature, out=weights), out=weights)
        if options.top_p < 1.0:
            nucleus = _nucleus(weights, options.top_p)
            identifiers = nucleus if identifiers is None else identifiers[nucleus]
            weights = weights[nucleus]
        if options.min_p > 0.0:
            # The most likely token has weight exactly 1, so min-p compares weights directly.
            likely = np.flatnonzero(weights >= options.min_p)
            identifiers = likely if identifiers is None else identifiers[likely]
            weights = weights[likely]
        return identifiers, weights


def _highest(logits: NDArray[np.float32]) -> int:
    """Index of the highest logit, all of which are checked."""
    if logits.ndim != 1 or len(logits) == 0:
        raise InvalidParameter(f"logits have shape {logits.shape}; expected (vocabulary,)")
    highest = highest_logit(logits)
    if highest is not None:
        return highest
    wrong = np.flatnonzero(~np.isfinite(logits))
    raise NumericalError(
        f"{len(wrong)} of {len(logits)} logits are not finite; the first is {logits[wrong[0]]} at token id {wrong[0]}"
    )


def _largest(values: NDArray[np.float32] | NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Indices, ascending, of the ``count`` largest values (shape (n,), count <= n); equal ones by lowest index."""
    columns = len(values) // _ROWS
    candidates = None
    if columns >= count:
        # Seen as a table, the count-th largest of the column maxima bounds the count-th largest value from below.
        maxima = values[: columns * _ROWS].reshape(_ROWS, columns).max(axis=0)
        candidates = np.flatnonzero(values >= np.partition(maxima, columns - count)[columns - count])
        values = values[candidates]
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > threshold)
    level = np.flatnonzero(values == threshold)[: count - len(above)]
    chosen = np.sort(np.concatenate((above, level)))
    return chosen if candidates is None else candidates[chosen]


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """Indices, ascending, of the fewest most likely entries that hold ``top_p`` of the total weight; never none."""
    wanted = top_p * float(weights.sum())
    count = min(_FIRST_NUCLEUS, len(weights))
    while True:
        candidates = _largest(weights, count)
        # Stable on ascending ids: equal weights enter in order of id.
        order = candidates[np.argsort(-weights[candidates], kind="stable")]
        cumulative = weights[order].cumsum()
        if count == len(weights) or cumulative[-1] >= wanted:
            # Rounding can leave the sum of everything just below what is wanted; then everything is kept.
            size = int(cumulative.searchsorted(wanted, side="left")) + 1
            return np.sort(order[:size])
        count = min(4 * count, len(weights))


def _drawn(weights: NDArray[np.float64], uniform: float) -> int:
    """Index of the entry that holds the point ``uniform`` (in [0, 1)) of the total weight, entries laid end to end.

    Sums blocks first and looks inside one block only: a running sum over a whole vocabulary is ten times slower.
    """
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).cumsum()
    target = uniform * float(blocks[-1])
    # The product can round up to the total; then the last block that adds anything to the total is meant.
    block = min(int(blocks.searchsorted(target, side="right")), int(blocks.searchsorted(blocks[-1], side="left")))
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK].cumsum()
    rest = target - (float(blocks[block - 1]) if block else 0.0)
    index = min(int(inside.searchsorted(rest, side="right")), int(inside.searchsorted(inside[-1], side="left")))
    return block * _BLOCK + index
