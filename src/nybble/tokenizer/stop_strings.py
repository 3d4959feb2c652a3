"""Stopping at a phrase, without showing the beginning of a phrase that may still come."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidParameter


class StopStrings:
    """Passes text on up to the first of ``stops``, however the text is cut into pieces.

    The first is the one that is complete first; of two that end together, the longer. Text that may be the beginning
    of a stop string is held back. Raises InvalidParameter for an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InvalidParameter("a stop string is empty; it would stop every answer before its first character")
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """``(text to show, True if a stop string is complete)``; after a stop, always ``("", True)``."""
        if self._stopped:
            return "", True
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            self._stopped = True
            self._held = ""
            return text[: min(matches)[1]], True
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                self._held = text[start:]
                return text[:start], False
        self._held = ""
        return text, False

    def finish(self) -> str:
        """The text held back, which no stop string claims any more; "" after a stop."""
        held, self._held = self._held, ""
        return held
