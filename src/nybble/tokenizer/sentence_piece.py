"""SentencePiece BPE, GGUF's tokeniser model ``llama``: characters merged by the score of the piece they make."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import ModelFileError
from .vocabulary import TokenType, Vocabulary, read_flag, read_list

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

SPACE = "▁"
"""How SentencePiece vocabularies spell a space (U+2581)."""

UNKNOWN = " unknown"
"""A spelling for the unknown token that no text contains, since every space is respelled before the search."""

METASPACE_KEY = "tokenizer.metaspace"
"""Where Metaspace puts a space in front, ``first`` or ``always``, if the tokeniser came as ``tokenizer.json``."""

_LONGEST_MERGED_PIECE = 512
_SCORES_KEY = "tokenizer.ggml.scores"


class SentencePieceCodec:
    """A ``TextCodec`` over a Hugging Face ``tokenizers`` BPE with byte fallback."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, object]) -> None:
        """Raises ModelFileError for missing or malformed scores or byte tokens."""
        self._pieces = SentencePieces(vocabulary, metadata)
        self.strips_leading_space = self._pieces.adds_space_prefix
        # As Hugging Face's Metaspace does it, which adds no space where there is one.
        scheme = metadata.get(METASPACE_KEY)
        self.prefixes_first_only = scheme == "first"
        self._spares_spaces = scheme is not None
        self._backend = self._build(vocabulary)

    def encode(self, text: str, *, opens_segment: bool) -> list[int]:
        """See ``TextCodec``."""
        text.encode()  # refuses lone surrogates
        prefixes = opens_segment and self._pieces.adds_space_prefix and not (self._spares_spaces and text[0] in " ▁")
        prefix = SPACE if prefixes else ""
        return self._backend.encode(prefix + text.replace(" ", SPACE), add_special_tokens=False).ids

    def token_bytes(self, token: int) -> bytes:
        """See ``TextCodec``."""
        return self._pieces.token_bytes(token)

    def _build(self, vocabulary: Vocabulary) -> Backend:
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Backend
        from tokenizers.models import BPE

        pieces = self._pieces
        merges = merges_by_score(pieces.merged, pieces.scores)
        ids = pieces.merged | {vocabulary.tokens[token]: token for token in pieces.byte_of_token} | pieces.user_defined
        if vocabulary.unknown is not None:
            ids[UNKNOWN] = vocabulary.unknown
        unknown = UNKNOWN if vocabulary.unknown is not None else None
        backend = Backend(BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        backend.add_tokens([AddedToken(text, normalized=False) for text in pieces.user_defined])
        return backend


class SentencePieces:
    """What both kinds of SentencePiece vocabulary share: scores, byte tokens and the spelling of spaces.

    ``merged`` maps the pieces that text is made of to their ids, ``user_defined`` those that are matched first.
    """

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, object]) -> None:
        file = vocabulary.file
        scores = read_list(metadata, _SCORES_KEY, file, float, length=len(vocabulary.tokens))
        if scores is None:
            raise ModelFileError(file, _SCORES_KEY, "missing; a SentencePiece vocabulary cannot work without scores")
        if any(map(math.isnan, scores)):
            raise ModelFileError(file, _SCORES_KEY, "has a score that is not a number")
        self.scores: Sequence[float] = scores
        self._vocabulary = vocabulary
        self.adds_space_prefix = read_flag(metadata, "tokenizer.ggml.add_space_prefix", file, True)
        self.byte_of_token = _byte_tokens(vocabulary)
        if len(self.byte_of_token) not in (0, 256):
            problem = f"has {len(self.byte_of_token)} byte tokens; expected 256 or none"
            raise ModelFileError(file, "tokenizer.ggml.token_type", problem)
        if not self.byte_of_token and vocabulary.unknown is None:
            problem = "missing, and there are no byte tokens: unknown characters could not be written"
            raise ModelFileError(file, "tokenizer.ggml.unknown_token_id", problem)
        # Converters respell runs of spaces with real spaces.
        self.user_defined = {text.replace(" ", SPACE): token for text, token in vocabulary.user_defined.items()}
        self.merged = {
            text: token
            for text, token in vocabulary.spellings().items()
            if token not in self.byte_of_token and text not in self.user_defined and text not in vocabulary.user_defined
        }

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token that is not silent."""
        byte = self.byte_of_token.get(token)
        if byte is not None:
            return bytes([byte])
        return self._vocabulary.tokens[token].replace(SPACE, " ").encode()


def _byte_tokens(vocabulary: Vocabulary) -> dict[int, int]:
    """Id to byte of every byte token, spelled ``<0x00>`` to ``<0xFF>``."""
    bytes_of_tokens = {}
    for token, kind in enumerate(vocabulary.types):
        if kind == TokenType.BYTE:
            text = vocabulary.tokens[token]
            if not re.fullmatch("<0x[0-9A-F]{2}>", text):
                problem = f"byte token {token} is spelled {text!r}; expected <0x00> to <0xFF>"
                raise ModelFileError(vocabulary.file, "tokenizer.ggml.tokens", problem)
            bytes_of_tokens[token] = int(text[3:5], 16)
    return bytes_of_tokens


def merges_by_score(pieces: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, best first: by the score of what they make.

    SentencePiece merges the best-scored neighbours, leftmost first among equals. Equal scores are pairs that make the
    same piece; their order shows only where two of them overlap, and a search over random small vocabularies found
    no text where it does.
    """
    candidates = []
    for piece, token in pieces.items():
        if len(piece) <= _LONGEST_MERGED_PIECE:
            for cut in range(1, len(piece)):
                left, right = piece[:cut], piece[cut:]
                if left in pieces and right in pieces:
                    candidates.append((scores[token], left, right))
    candidates.sort(key=lambda candidate: -candidate[0])
    return [(left, right) for _, left, right in candidates]
