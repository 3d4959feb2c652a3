"""Byte-level BPE, GGUF's tokeniser model ``gpt2``: words are written as bytes, and bytes merged by a ranked list."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import methodcaller
from typing import TYPE_CHECKING

from .. import _native
from ..errors import ModelFileError
from .byte_alphabet import BYTE_OF_CHARACTER, BYTES_OF_TEXT, CHARACTER_OF_BYTE
from .control_tokens import ControlTokens
from .pre_tokenizers import PreTokenizer
from .vocabulary import TokenType, Vocabulary, read_list

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer as Splitter

_SPLIT = methodcaller("split", " ")
MAXIMUM_MERGES = 1 << 21
_MERGES_KEY = "tokenizer.ggml.merges"
_NO_TOKEN = 2**32 - 1


class ByteLevelCodec:
    """A ``TextCodec``: a Hugging Face ``tokenizers`` pre-tokeniser cuts words, native code merges their bytes.

    ``token_of_byte`` and ``merges`` are as ``_native.BytePairs`` takes them.

    Some vocabularies have no token for some bytes (SmolLM2's lacks U+0004 and the lead byte of U+40000). A character
    that needs one is left out, as the reference does for single bytes; but all of it, where the reference would keep
    the rest of its bytes.
    """

    strips_leading_space = False
    prefixes_first_only = False

    def __init__(self, vocabulary: Vocabulary, rules: PreTokenizer, token_of_byte: bytes, merges: bytes) -> None:
        self._vocabulary = vocabulary
        self.rules = rules
        self.token_of_byte = token_of_byte
        self.merges = merges
        self._pairs = _native.BytePairs(token_of_byte, merges)
        self._splitter = _splitter(rules)
        tokens = memoryview(token_of_byte).cast("I")
        self._missing = bytes(byte for byte in sorted(BYTES_OF_TEXT) if tokens[byte] == _NO_TOKEN)
        # Control tokens are in neither table, so no text can become one.
        self._user_defined = ControlTokens(vocabulary.user_defined)

    def encode(self, text: str, *, opens_segment: bool) -> list[int]:
        """See ``TextCodec``."""
        encoded = text.encode()
        if self._missing and len(encoded.translate(None, self._missing)) < len(encoded):
            missing = frozenset(self._missing)
            text = "".join(character for character in text if missing.isdisjoint(character.encode()))
        ids: list[int] = []
        for part in self._user_defined.split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self._merged([word.encode() for word, _ in self._splitter.pre_tokenize_str(part)]))
        return ids

    def token_bytes(self, token: int) -> bytes:
        """See ``TextCodec``."""
        text = self._vocabulary.tokens[token]
        if self._vocabulary.types[token] == TokenType.USER_DEFINED:
            return text.encode()
        try:
            return bytes([BYTE_OF_CHARACTER[character] for character in text])
        except KeyError:
            # Placeholders that are not written in the byte alphabet stand for themselves.
            return text.encode()

    def _merged(self, words: Sequence[bytes]) -> list[int]:
        if not self.rules.ignores_merges:
            return self._pairs.encode(words)
        ids: list[int] = []
        for word in words:
            token = self._spellings.get("".join([CHARACTER_OF_BYTE[byte] for byte in word]))
            ids.extend(self._pairs.encode([word]) if token is None else [token])
        return ids

    @cached_property
    def _spellings(self) -> dict[str, int]:
        return self._vocabulary.spellings()


def _splitter(rules: PreTokenizer) -> Splitter:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Sequence, Split

    return Sequence([Split(Regex(pattern), "isolated") for pattern in rules.patterns])


def byte_level_from_gguf(vocabulary: Vocabulary, metadata: Mapping[str, object], rules: PreTokenizer) -> ByteLevelCodec:
    """The codec of a GGUF file. Raises ModelFileError for merges that are missing or do not name tokens."""
    spellings = vocabulary.spellings()
    tokens = array("I", [spellings.get(character, _NO_TOKEN) for character in CHARACTER_OF_BYTE])
    merges = _numbered(vocabulary, spellings, _read_merges(metadata, vocabulary.file))
    return ByteLevelCodec(vocabulary, rules, tokens.tobytes(), merges.tobytes())


def _read_merges(metadata: Mapping[str, object], file: str) -> list[tuple[str, str]]:
    merges = read_list(metadata, _MERGES_KEY, file, str)
    if merges is None:
        raise ModelFileError(file, _MERGES_KEY, "missing; the gpt2 tokeniser cannot work without merges")
    if len(merges) > MAXIMUM_MERGES:
        raise ModelFileError(file, _MERGES_KEY, f"{len(merges)} merges; at most {MAXIMUM_MERGES} are accepted")
    try:
        return [(left, right) for left, right in map(_SPLIT, merges)]
    except ValueError:
        rank = next(rank for rank, merge in enumerate(merges) if merge.count(" ") != 1)
        problem = f"merge {rank} is {merges[rank]!r}; expected two tokens and a space between them"
        raise ModelFileError(file, _MERGES_KEY, problem) from None


def _numbered(vocabulary: Vocabulary, spellings: dict[str, int], merges: list[tuple[str, str]]) -> array[int]:
    """The ids (left, right, merged) of each merge, without those of control tokens, which text must not become."""
    numbers = array("I")
    control = vocabulary.control.keys()
    for rank, (left, right) in enumerate(merges):
        try:
            numbers.extend((spellings[left], spellings[right], spellings[left + right]))
        except KeyError as error:
            texts = (left, right, left + right)
            if control.isdisjoint(texts):
                problem = (
                    f"merge {rank}, {left!r} and {right!r}, needs {error.args[0]!r}, which is not in the vocabulary"
                )
                raise ModelFileError(vocabulary.file, _MERGES_KEY, problem) from None
    return numbers
