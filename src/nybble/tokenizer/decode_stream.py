"""Decoding token by token without ever showing half a character."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class DecodeStream:
    """Turns ids into text as they come; what it returns, joined, is what ``Tokenizer.decode`` returns for all of them.

    Characters may be split over tokens; their bytes are held until the last one is there. A byte that cannot belong
    to a character becomes U+FFFD as soon as that is certain. Each token takes time in its own length only.
    ``after_text`` says that the ids continue other text, so a leading space is part of the answer.
    """

    def __init__(self, tokenizer: Tokenizer, *, after_text: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_space = tokenizer.strips_leading_space and not after_text

    def push(self, token: int) -> str:
        """The text that ``token`` completes. Raises InvalidParameter for ids outside the vocabulary."""
        piece = self._tokenizer.token_bytes(token)
        if self._strip_space and piece:
            piece = piece.removeprefix(b" ")
            self._strip_space = False
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left when no more tokens come: U+FFFD for a character that was not completed, else ""."""
        return self._decoder.decode(b"", final=True)
