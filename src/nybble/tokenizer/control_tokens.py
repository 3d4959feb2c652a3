"""Finding control tokens in text that a chat template wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property


class ControlTokens:
    """The spellings of a vocabulary's control tokens, and the search for them.

    Looks up slices in a dictionary instead of compiling an alternation: vocabularies hold thousands of them.
    """

    def __init__(self, spellings: Mapping[str, int]) -> None:
        self.spellings = spellings
        self.first_characters = frozenset(text[0] for text in spellings)
        self._lengths = sorted({len(text) for text in spellings}, reverse=True)
        characters = "".join(map(re.escape, sorted(self.first_characters)))
        # Without control tokens nothing may match, and an empty class is not a pattern.
        self._candidates = re.compile(f"[{characters}]" if characters else r"(?!)")

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(text[:length] for text in self.spellings for length in range(1, len(text) + 1))

    def may_arise_from(self, text: str) -> bool:
        """True if ``text`` contains a control token, or ends in the beginning of one that more text could complete."""
        return any(isinstance(part, int) for part in self.split(text)) or any(
            text[start.start() :] in self._beginnings for start in self._candidates.finditer(text)
        )

    def split(self, text: str) -> list[str | int]:
        """``text`` cut at its control tokens: non-empty plain text as ``str``, control tokens as ids.

        Where several match at one place, the longest wins.
        """
        parts: list[str | int] = []
        start = position = 0
        while (candidate := self._candidates.search(text, position)) is not None:
            position = candidate.start()
            for length in self._lengths:
                token = self.spellings.get(text[position : position + length])
                if token is not None and position + length <= len(text):
                    if start < position:
                        parts.append(text[start:position])
                    parts.append(token)
                    position += length
                    start = position
                    break
            else:
                position += 1
        if start < len(text):
            parts.append(text[start:])
        return parts
