"""The vocabulary of a model file: how its tokens are spelled, of what kind they are, and the special ids."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..errors import ModelFileError

MAXIMUM_TOKENS = 1 << 20
"""Four times the largest vocabulary in use."""
MAXIMUM_TOKEN_CHARACTERS = 4096
MAXIMUM_TOTAL_CHARACTERS = 1 << 23
MAXIMUM_MATCHED_TOKENS = 1 << 15
"""Most control and user-defined tokens together; the largest vocabularies in use have about 6,500."""

Element = TypeVar("Element")


class TokenType(enum.IntEnum):
    """The kinds of ``tokenizer.ggml.token_type`` (GGUF specification)."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_NORMAL = int(TokenType.NORMAL)

END_OF_TURN = frozenset(
    {
        "</s>",
        "<eos>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<|end|>",
        "<|end_of_text|>",
        "<|end_of_turn|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|im_end|>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Spellings that end a turn in every model that has them as a control token, declared as an end token or not."""

TURN_MARKERS = END_OF_TURN - {"</s>", "<eos>"} | {"<start_of_turn>", "<|im_start|>", "<|start_header_id|>"}
"""Spellings that are control tokens even where a converter forgot to say so. (``</s>`` is an HTML tag in some.)"""

_DEFAULT_IDS: dict[tuple[object, str], int] = {
    ("llama", "bos"): 1,
    ("llama", "eos"): 2,
    ("llama", "unknown"): 0,
    ("t5", "eos"): 1,
    ("t5", "unknown"): 2,
}
"""The ids of SentencePiece's and T5's own defaults, which files may leave out."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A checked vocabulary; ids are positions in ``tokens``.

    ``control`` maps the spelling of each control token to its id: tokens that only a chat template may write and
    that decode to nothing. ``user_defined`` maps tokens that are looked for in plain text before anything else.
    """

    file: str
    tokens: Sequence[str]
    types: Sequence[int]
    control: dict[str, int]
    user_defined: dict[str, int]
    beginning_of_sequence: int | None
    end_of_sequence: int | None
    unknown: int | None
    end_tokens: frozenset[int]
    adds_beginning_of_sequence: bool

    def is_silent(self, token: int) -> bool:
        """True for tokens that stand for no text: control, unknown and unused ones."""
        return self.types[token] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)

    def spellings(self) -> dict[str, int]:
        """Spelling to id of every token that may come out of plain text."""
        ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        for token in _special(self.types):
            if self.is_silent(token):
                ids.pop(self.tokens[token], None)
        ids.pop("", None)
        return ids


def vocabulary_from_gguf(
    metadata: Mapping[str, object],
    file: str,
    *,
    adds_beginning_of_sequence: bool,
) -> Vocabulary:
    """Read and check the vocabulary keys of GGUF ``metadata``; the last argument is what a file that is silent means.

    Raises ModelFileError for lists of unequal length, wrong element types, ids outside the vocabulary, tokens that
    occur twice and sizes no real vocabulary has.
    """
    tokens = read_list(metadata, "tokenizer.ggml.tokens", file, str)
    if tokens is None:
        raise ModelFileError(file, "tokenizer.ggml.tokens", "missing; the file has no vocabulary")
    _check_tokens(tokens, file)
    types = read_list(metadata, "tokenizer.ggml.token_type", file, int, length=len(tokens))
    types = [_NORMAL] * len(tokens) if types is None else list(types)
    foreign = set(types) - set(map(int, TokenType))
    if foreign:
        raise ModelFileError(
            file, "tokenizer.ggml.token_type", f"has the unknown type {min(foreign)}; types are 0 to 6"
        )

    beginning, end, turn_end, message_end, unknown = (
        read_special_id(metadata, name, file, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown")
    )
    ends = {token for token in (end, turn_end, message_end) if token is not None}
    for token in ends if beginning is None else {beginning, *ends}:
        if types[token] != TokenType.BYTE:
            types[token] = TokenType.CONTROL
    _mark_forgotten_control_tokens(tokens, types)
    special = [token for token in _special(types) if tokens[token]]
    control = {tokens[token]: token for token in special if types[token] == TokenType.CONTROL}
    user_defined = {tokens[token]: token for token in special if types[token] == TokenType.USER_DEFINED}
    if len(control) + len(user_defined) > MAXIMUM_MATCHED_TOKENS:
        count = len(control) + len(user_defined)
        problem = f"{count} control and user-defined tokens; at most {MAXIMUM_MATCHED_TOKENS} are accepted"
        raise ModelFileError(file, "tokenizer.ggml.token_type", problem)

    adds = read_flag(metadata, "tokenizer.ggml.add_bos_token", file, adds_beginning_of_sequence)
    if adds and beginning is None:
        raise ModelFileError(
            file, "tokenizer.ggml.add_bos_token", "is true, but tokenizer.ggml.bos_token_id is missing"
        )
    return Vocabulary(
        file=file,
        tokens=tokens,
        types=types,
        control=control,
        user_defined=user_defined,
        beginning_of_sequence=beginning,
        end_of_sequence=end,
        unknown=unknown,
        end_tokens=frozenset(ends) | {control[text] for text in END_OF_TURN if text in control},
        adds_beginning_of_sequence=adds,
    )


def _check_tokens(tokens: list[str], file: str) -> None:
    key = "tokenizer.ggml.tokens"
    if not 0 < len(tokens) <= MAXIMUM_TOKENS:
        raise ModelFileError(file, key, f"{len(tokens)} tokens; expected 1 to {MAXIMUM_TOKENS}")
    lengths = list(map(len, tokens))
    longest = max(lengths)
    if longest > MAXIMUM_TOKEN_CHARACTERS:
        problem = f"token {lengths.index(longest)} has {longest} characters; at most {MAXIMUM_TOKEN_CHARACTERS}"
        raise ModelFileError(file, key, problem)
    if sum(lengths) > MAXIMUM_TOTAL_CHARACTERS:
        raise ModelFileError(file, key, f"{sum(lengths)} characters in all; at most {MAXIMUM_TOTAL_CHARACTERS}")
    if len(set(tokens)) != len(tokens):
        seen: dict[str, int] = {}
        for token, text in enumerate(tokens):
            # Converters leave placeholders empty; they are never matched, so several do no harm.
            if text and text in seen:
                raise ModelFileError(file, key, f"token {token} repeats token {seen[text]}, {text!r}")
            seen[text] = token


def _mark_forgotten_control_tokens(tokens: list[str], types: list[int]) -> None:
    for token in _special(types):
        if types[token] == TokenType.USER_DEFINED and tokens[token][:2] + tokens[token][-2:] in ("<||>", "<｜｜>"):
            types[token] = TokenType.CONTROL
    for text in TURN_MARKERS.intersection(tokens):
        types[tokens.index(text)] = TokenType.CONTROL


def _special(types: Sequence[int]) -> list[int]:
    """Ids of the tokens that are not normal, in a pass that costs little at each start."""
    return [token for token, kind in enumerate(types) if kind != _NORMAL]


def read_special_id(metadata: Mapping[str, object], name: str, file: str, limit: int) -> int | None:
    """The id under ``tokenizer.ggml.<name>_token_id``, or the tokeniser model's default, or None.

    Raises ModelFileError for ids that are not below ``limit``.
    """
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        default = _DEFAULT_IDS.get((metadata.get("tokenizer.ggml.model"), name))
        return default if default is not None and default < limit else None
    if type(value) is not int or not 0 <= value < limit:
        raise ModelFileError(file, key, f"is {value!r}; expected a token id below {limit}")
    return value


def read_list(
    metadata: Mapping[str, object], key: str, file: str, kind: type[Element], length: int | None = None
) -> list[Element] | None:
    """The list under ``key``, every element of type ``kind``; None if the key is missing.

    Raises ModelFileError for anything else, or if ``length`` is given and does not match.
    """
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, list):
        raise ModelFileError(file, key, f"is a {type(value).__name__}; expected a list")
    if length is not None and len(value) != length:
        raise ModelFileError(file, key, f"has {len(value)} elements, but tokenizer.ggml.tokens has {length}")
    if set(map(type, value)) - {kind}:
        raise ModelFileError(file, key, f"has elements that are not of type {kind.__name__}")
    return value


def read_flag(metadata: Mapping[str, object], key: str, file: str, default: bool) -> bool:
    """The boolean under ``key``, or ``default`` if it is missing; ModelFileError for another type."""
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise ModelFileError(file, key, f"is {value!r}; expected true or false")
    return value
