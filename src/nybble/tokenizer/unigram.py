"""SentencePiece unigram, GGUF's tokeniser model ``t5``: the segmentation with the best sum of scores."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import ModelFileError
from .sentence_piece import SPACE, SentencePieces
from .vocabulary import Vocabulary, read_flag, read_list

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.normalizers import Normalizer

_CHARACTER_MAP_KEY = "tokenizer.ggml.precompiled_charsmap"


class UnigramCodec:
    """A ``TextCodec`` over a Hugging Face ``tokenizers`` unigram model.

    Characters that are in no piece become byte tokens if the vocabulary has them, else the unknown token.
    """

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, object]) -> None:
        """Raises ModelFileError for malformed scores, byte tokens or character map, or without an unknown token."""
        file = vocabulary.file
        if vocabulary.unknown is None:
            raise ModelFileError(file, "tokenizer.ggml.unknown_token_id", "missing; the t5 tokeniser needs it")
        self._file = file
        self._unknown = vocabulary.unknown
        self._pieces = SentencePieces(vocabulary, metadata)
        self.strips_leading_space = self._pieces.adds_space_prefix
        self.prefixes_first_only = False
        self._token_of_byte = {byte: token for token, byte in self._pieces.byte_of_token.items()}
        self._collapses_spaces = read_flag(metadata, "tokenizer.ggml.remove_extra_whitespaces", file, False)
        self._normalizer = _character_map(metadata, file)
        self._backend = self._build(vocabulary)

    def encode(self, text: str, *, opens_segment: bool) -> list[int]:
        """See ``TextCodec``. Raises ModelFileError if the character map of the file is malformed."""
        text.encode()  # refuses lone surrogates
        if self._normalizer is not None:
            text = _normalize(self._normalizer, text, self._file)
        if self._collapses_spaces:
            text = re.sub(" +", " ", text).strip(" ")
            if not text:
                return []
        prefix = SPACE if opens_segment and self._pieces.adds_space_prefix else ""
        text = prefix + text.replace(" ", SPACE)
        encoding = self._backend.encode(text, add_special_tokens=False)
        if not self._token_of_byte:
            return encoding.ids
        ids: list[int] = []
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token == self._unknown:
                ids.extend(self._token_of_byte[byte] for byte in text[start:end].encode())
            else:
                ids.append(token)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """See ``TextCodec``."""
        return self._pieces.token_bytes(token)

    def _build(self, vocabulary: Vocabulary) -> Backend:
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Backend
        from tokenizers.models import Unigram

        pieces = self._pieces
        # The model needs a spelling for every id. Those that text must not become get one with a space, which is
        # respelled in all text before the search.
        entries = [(f" {token}", 0.0) for token in range(len(vocabulary.tokens))]
        for text, token in (pieces.merged | pieces.user_defined).items():
            if math.isinf(pieces.scores[token]):
                problem = f"token {token}, {text!r}, has an infinite score"
                raise ModelFileError(vocabulary.file, "tokenizer.ggml.scores", problem)
            entries[token] = (text, pieces.scores[token])
        backend = Backend(Unigram(entries, unk_id=self._unknown, byte_fallback=False))
        backend.add_tokens([AddedToken(text, normalized=False) for text in pieces.user_defined])
        return backend


def _character_map(metadata: Mapping[str, object], file: str) -> Normalizer | None:
    """The rewriting of characters that SentencePiece compiled into the file, if there is one."""
    values = read_list(metadata, _CHARACTER_MAP_KEY, file, int)
    if not values:
        return None
    if not (min(values) >= -128 and max(values) <= 255):
        raise ModelFileError(file, _CHARACTER_MAP_KEY, "has elements that are not bytes")
    from tokenizers.normalizers import Precompiled

    try:
        return Precompiled(bytes(value & 0xFF for value in values))
    except Exception as error:
        raise ModelFileError(file, _CHARACTER_MAP_KEY, f"is malformed: {error}") from None


def _normalize(normalizer: Normalizer, text: str, file: str) -> str:
    try:
        return normalizer.normalize_str(text)
    except BaseException as error:
        # A map that points outside itself is a Rust panic, which derives from BaseException only.
        if type(error).__name__ != "PanicException":
            raise
        raise ModelFileError(file, _CHARACTER_MAP_KEY, "is malformed: it points outside itself") from None
