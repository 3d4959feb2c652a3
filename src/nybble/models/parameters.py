"""Typed, range-checked access to the keys ``<architecture>.*`` of a checkpoint's metadata."""

from __future__ import annotations

from typing import NoReturn

from ..errors import ModelFileError, UnsupportedFeature
from ..formats.checkpoint import Checkpoint, MetadataValue


class Parameters:
    """The hyperparameters of a checkpoint. Remembers which were asked for, so that none is silently ignored.

    Keys are given without the architecture's prefix: ``attention.head_count`` for ``llama.attention.head_count``.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._prefix = f"{checkpoint.architecture}."
        self._known: set[str] = set()

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number of ``low``..``high``; ``default`` where the key is missing, an error if that is None."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._refuse(key, value, f"a whole number of {low}..{high}")
        return value

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number of ``low``..``high``; ``default`` where the key is missing, an error if that is None."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self._refuse(key, value, f"a number of {low:g}..{high:g}")  # NaN is in no range
        return float(value)

    def choice(self, key: str, known: tuple[str, ...], default: str) -> str:
        """One of the ``known`` words; another word is a feature nybble does not have."""
        value = self._take(key, default)
        if not isinstance(value, str):
            self._refuse(key, value, f"one of {', '.join(known)}")
        if value not in known:
            self.unsupported(key, value, f"one of {', '.join(known)}")
        return value

    def neutral(self, key: str, feature: str, *accepted: MetadataValue) -> None:
        """Refuse ``feature`` by name unless its key is missing or has one of the values that switch it off."""
        value = self._take(key, accepted[0])
        if value not in accepted:
            self.unsupported(key, value, f"no {feature}")

    def ignore(self, key: str) -> None:
        """Accept a key whose value does not change what the model computes."""
        self._known.add(self._prefix + key)

    def unsupported(self, key: str, value: object, accepted: str) -> NoReturn:
        """Refuse a well-formed value, naming what nybble accepts instead."""
        raise UnsupportedFeature(
            f"{self._checkpoint.path}: {self._prefix}{key} is {_shown(value)}; nybble runs models with {accepted}"
        )

    def refuse_unknown(self) -> None:
        """Refuse every key of this architecture that nobody asked for: it may change what the model computes."""
        for key, value in self._checkpoint.metadata.items():
            if key.startswith(self._prefix) and key not in self._known:
                raise UnsupportedFeature(
                    f"{self._checkpoint.path}: {key} is {_shown(value)}; nybble does not know what this key means, "
                    "and will not guess"
                )

    def _take(self, key: str, default: MetadataValue | None) -> MetadataValue:
        name = self._prefix + key
        self._known.add(name)
        value = self._checkpoint.metadata.get(name, default)
        if value is None:
            raise ModelFileError(self._checkpoint.path, name, "is missing from the file's metadata")
        if isinstance(value, list):
            self.unsupported(key, value, f"one {key} for all layers")
        return value

    def _refuse(self, key: str, value: object, expected: str) -> NoReturn:
        raise ModelFileError(self._checkpoint.path, self._prefix + key, f"is {_shown(value)}; expected {expected}")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
