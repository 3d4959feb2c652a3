"""Byte-level BPE, GGUF's tokeniser model ``gpt2``: words are written as bytes, and bytes merged by a ranked list."""

from __future__ import annotations

from collections.abc import Mapping
from operator import methodcaller
from typing import TYPE_CHECKING

from ..errors import ModelFileError
from .byte_alphabet import BYTE_OF_CHARACTER, BYTES_OF_TEXT, CHARACTER_OF_BYTE
from .pre_tokenizers import PreTokenizer
from .vocabulary import TokenType, Vocabulary, read_list

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_SPLIT = methodcaller("split", " ")
MAXIMUM_MERGES = 1 << 21
_MERGES_KEY = "tokenizer.ggml.merges"


class ByteLevelCodec:
    """A ``TextCodec`` over a Hugging Face ``tokenizers`` BPE.

    Some vocabularies have no token for some bytes (SmolLM2's lacks U+0004 and the lead byte of U+40000). A character
    that needs one is left out, as the reference does for single bytes; but all of it, where the reference would keep
    the rest of its bytes.
    """

    strips_leading_space = False

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, object], rules: PreTokenizer) -> None:
        """Raises ModelFileError for merges that are missing or do not name tokens."""
        self._vocabulary = vocabulary
        spellings = vocabulary.spellings()
        self._missing = bytes(byte for byte in sorted(BYTES_OF_TEXT) if CHARACTER_OF_BYTE[byte] not in spellings)
        self._backend = _build(vocabulary, spellings, _read_merges(metadata, vocabulary.file), rules)

    def encode(self, text: str, *, opens_segment: bool) -> list[int]:
        """See ``TextCodec``."""
        encoded = text.encode()
        if self._missing and len(encoded.translate(None, self._missing)) < len(encoded):
            missing = frozenset(self._missing)
            text = "".join(character for character in text if missing.isdisjoint(character.encode()))
        return self._backend.encode(text, add_special_tokens=False).ids

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


def _build(
    vocabulary: Vocabulary, spellings: dict[str, int], merges: list[tuple[str, str]], rules: PreTokenizer
) -> Backend:
    from tokenizers import AddedToken, Regex
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    try:
        model = BPE(spellings, merges, ignore_merges=rules.ignores_merges)
    except Exception:
        # Only now look for the reason: checking each merge first would cost every start.
        merges = _checked_merges(vocabulary, spellings, merges)
        model = BPE(spellings, merges, ignore_merges=rules.ignores_merges)
    backend = Backend(model)
    # Control tokens are not in the model, so no text can become one.
    backend.add_tokens([AddedToken(text, normalized=False) for text in vocabulary.user_defined])
    splits = [Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    backend.pre_tokenizer = Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    return backend


def _checked_merges(
    vocabulary: Vocabulary, spellings: dict[str, int], merges: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The merges without those that lead to a control token, which text must not become."""
    control = vocabulary.control.keys()
    kept = []
    for rank, (left, right) in enumerate(merges):
        for text in (left, right, left + right):
            if text in control:
                break
            if text not in spellings:
                problem = f"merge {rank}, {left!r} and {right!r}, needs {text!r}, which is not in the vocabulary"
                raise ModelFileError(vocabulary.file, _MERGES_KEY, problem)
        else:
            kept.append((left, right))
    return kept
