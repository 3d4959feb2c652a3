"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..errors import InvalidParameter
from .control_tokens import ControlTokens
from .decode_stream import DecodeStream
from .vocabulary import Vocabulary


class TextCodec(Protocol):
    """How one kind of vocabulary turns plain text into ids, and one id into bytes."""

    strips_leading_space: bool
    """True if text starts with a space that encoding added and decoding takes away."""

    prefixes_first_only: bool
    """True if encoding adds a space at the start of the text only, and not after control tokens."""

    def encode(self, text: str, *, opens_segment: bool) -> list[int]:
        """Ids of non-empty ``text``, no control token among them.

        ``opens_segment`` is true at the start of the text and, unless ``prefixes_first_only``, after a control token.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes, perhaps part of a character, that a token which is not silent stands for."""
        ...


class Tokenizer:
    """The tokeniser of one model. Control tokens come from ids only: spelled out in text, they stay text."""

    def __init__(self, vocabulary: Vocabulary, codec: TextCodec) -> None:
        self.vocabulary_facts = vocabulary
        self.codec = codec
        self.vocabulary = len(vocabulary.tokens)
        """Number of tokens; ids run from 0 to one less."""
        self.beginning_of_sequence = vocabulary.beginning_of_sequence
        """The id that opens every sequence, if the model has one."""
        self.end_of_sequence = vocabulary.end_of_sequence
        """The id that ends a sequence, if the model has one; ``end_tokens`` has all that end a turn."""
        self.adds_beginning_of_sequence = vocabulary.adds_beginning_of_sequence
        """True if the model expects that id in front of a prompt which does not have it."""
        self.end_tokens = vocabulary.end_tokens
        """Every id after which the model has nothing more to say in this turn."""
        self.control_tokens = ControlTokens(vocabulary.control)
        self.strips_leading_space = codec.strips_leading_space
        """True if the first token's leading space was added by encoding and is not part of the text."""

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Ids of plain ``text``; with ``add_bos``, after the beginning of sequence if the model expects one.

        Raises InvalidParameter for text that is not valid Unicode (lone surrogates).
        """
        return self.encode_segments([text], add_bos=add_bos)

    def encode_segments(self, segments: Iterable[str | int], *, add_bos: bool = False) -> list[int]:
        """Ids of plain text (``str``) and control tokens (``int``) in turn.

        ``add_bos`` puts the beginning of sequence in front if the model expects it and no segment already is that id.
        Raises as ``encode``, and InvalidParameter for ids outside the vocabulary.
        """
        ids: list[int] = []
        opens_segment = True
        for segment in segments:
            if isinstance(segment, int):
                ids.append(self._checked(segment))
                opens_segment = not self.codec.prefixes_first_only
            elif segment:
                try:
                    ids.extend(self.codec.encode(segment, opens_segment=opens_segment))
                except UnicodeEncodeError as error:
                    raise InvalidParameter(f"the text is not valid Unicode: {error.reason} at {error.start}") from None
                opens_segment = False
        beginning = self.beginning_of_sequence
        if add_bos and self.adds_beginning_of_sequence and beginning is not None and beginning not in ids:
            ids.insert(0, beginning)
        return ids

    def decode(self, ids: Iterable[int], *, after_text: bool = False) -> str:
        """The text of ``ids``: control tokens are "", bytes that are not UTF-8 become U+FFFD.

        ``after_text`` says that the ids continue other text, so a leading space is part of the answer.
        Raises InvalidParameter for ids outside the vocabulary.
        """
        stream = DecodeStream(self, after_text=after_text)
        return "".join([*map(stream.push, ids), stream.finish()])

    def token_text(self, token: int) -> str:
        """The token as the vocabulary spells it. Raises InvalidParameter for ids outside the vocabulary."""
        return self.vocabulary_facts.tokens[self._checked(token)]

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to the text, perhaps part of a character; none for control tokens.

        Raises InvalidParameter for ids outside the vocabulary.
        """
        return b"" if self.vocabulary_facts.is_silent(self._checked(token)) else self.codec.token_bytes(token)

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.vocabulary:
            raise InvalidParameter(f"token id {token} is outside the vocabulary of {self.vocabulary} tokens")
        return token
