"""Choosing the next token: options, filters and the random draw.

The order is fixed: repetition penalty, then either the argmax (temperature 0) or temperature, top-k, top-p, min-p and
one draw. Every token of a sequence costs one call, so nothing here sorts a whole vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import InvalidParameter, NumericalError

BEST_ISA = _native.available_isas()[0]
"""Whose kernels look at logits; all find the same."""

_LOG = logging.getLogger(__name__)

# A nucleus (top-p) is searched among this many of the most likely tokens first, then among four times as many, and so
# on: trained models rarely need more than the first round.
_FIRST_NUCLEUS = 256
_ROWS = 64  # of the table in which the largest values are searched
_BLOCK = 512  # entries summed as one when a token is drawn

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}
_TOP_K_LIMIT = 2**31 - 1
_SEED_RANGE = (-(2**63), 2**64 - 1)
_FLOAT32_RANGE = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))

# Keys of the GGUF specification as written by the gguf package (constants.py, Keys.General).
_METADATA_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the next token is chosen.

    ``temperature`` 0 takes the most likely token and ignores the other filters. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0
    and ``repetition_penalty`` 1 switch their filter off; ``top_p`` 0 keeps the most likely token only.
    ``seed`` None draws a fresh seed from the operating system. Raises InvalidParameter naming parameter, value and
    legal range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            object.__setattr__(self, name, _checked_real(name, getattr(self, name), low, high))
        object.__setattr__(self, "top_k", _checked_integer("top_k", self.top_k, 0, _TOP_K_LIMIT))
        if self.seed is not None:
            object.__setattr__(self, "seed", _checked_integer("seed", self.seed, *_SEED_RANGE))


def _checked_real(name: str, value: object, low: float, high: float) -> float:
    # bool is a number to Python; True as a temperature is a mistake of the caller.
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidParameter(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}")
    if not low <= float(value) <= high:
        raise InvalidParameter(f"{name} is {float(value):g}; it must be from {low:g} to {high:g}")
    return float(value)


def _checked_integer(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise InvalidParameter(f"{name} is {value!r}; it must be a whole number from {low} to {high}")
    if not low <= int(value) <= high:
        raise InvalidParameter(f"{name} is {int(value)}; it must be from {low} to {high}")
    return int(value)


def defaults_from_metadata(metadata: Mapping[str, object]) -> SamplingOptions:
    """The options a model's author recommends, from ``general.sampling.*``; ours where the file says nothing.

    A value outside its legal range is not used; a warning is logged.
    """
    values, refused = _recommended(metadata)
    for parameter, error in refused.items():
        _LOG.warning("%s of the model file is not used: %s", _METADATA_KEYS[parameter], error)
    return SamplingOptions(**values)


def default_origins(metadata: Mapping[str, object]) -> dict[str, str]:
    """Where each value of :func:`defaults_from_metadata` came from: parameter name -> GGUF key or "nybble's default".

    Keys under ``general.sampling.`` that nybble has no filter for are listed under their own name as "ignored".
    """
    recommended, refused = _recommended(metadata)
    origins = {}
    for parameter, key in _METADATA_KEYS.items():
        if parameter in recommended:
            origins[parameter] = key
        elif parameter in refused:
            origins[parameter] = f"nybble's default, as {key} of the model file is no use: {refused[parameter]}"
        else:
            origins[parameter] = "nybble's default"
    unknown = {key for key in metadata if key.startswith("general.sampling.")} - set(_METADATA_KEYS.values())
    return origins | dict.fromkeys(sorted(unknown), "ignored")


def _recommended(metadata: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, InvalidParameter]]:
    """The file's legal values, and what is wrong with the others."""
    values: dict[str, Any] = {}
    refused: dict[str, InvalidParameter] = {}
    for parameter, key in _METADATA_KEYS.items():
        if key not in metadata:
            continue
        value: Any = metadata[key]
        if isinstance(value, float):
            value = float(f"{value:.7g}")  # stored as fp32: 0.95 arrives as 0.949999988
        elif parameter == "top_k" and value == -1:
            value = 0  # some files spell "off" as -1
        try:
            SamplingOptions(**{parameter: value})
        except InvalidParameter as error:
            refused[parameter] = error
        else:
            values[parameter] = value
    return values, refused


class Sampler:
    """Draws the tokens of one sequence. Holds its own PCG64 generator, so neighbours in a batch never disturb it."""

    def __init__(self, options: SamplingOptions) -> None:
        self.options = options
        # Negative seeds (legal in the OpenAI API) wrap to their two's complement.
        self._generator = np.random.PCG64(None if options.seed is None else options.seed % 2**64)
        self._scratch = np.empty(0, dtype=np.float64)

    def sample(self, logits: NDArray[np.float32], history: Sequence[int] | NDArray[np.integer]) -> int:
        """Choose the next token id.

        ``logits`` has shape (vocabulary,) and is not changed. ``history`` holds the ids that the repetition penalty
        applies to (an integer array spares a conversion). Equal logits are decided in favour of the lowest id.
        Raises NumericalError when a logit is NaN or infinite.
        """
        highest = _highest(logits)
        penalized = self._penalized(logits, history)
        if self.options.temperature == 0.0:
            return highest if penalized is logits else int(penalized.argmax())
        logits = penalized
        identifiers, weights = self._filtered(logits)
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
    highest = _native.highest_logit(BEST_ISA, logits)
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
