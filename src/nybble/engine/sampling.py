"""How the next token is chosen: the options, and what a model's author recommends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ..errors import InvalidParameter

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}
_TOP_K_LIMIT = 2**31 - 1
_SEED_RANGE = (-(2**63), 2**64 - 1)

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

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken, whatever came before."""
        return self.temperature == 0.0 and self.repetition_penalty == 1.0


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
        import logging

        logging.getLogger(__name__).warning("%s of the model file is not used: %s", _METADATA_KEYS[parameter], error)
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
