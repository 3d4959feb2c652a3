"""A tokeniser as plain data, so that a start need not read it out of a model file again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .byte_level import ByteLevelCodec
from .pre_tokenizers import PRE_TOKENIZERS
from .text_array import TextArray, packed_texts
from .tokenizer import Tokenizer
from .vocabulary import Vocabulary

_SPECIAL = (
    "beginning_of_sequence",
    "end_of_sequence",
    "unknown",
    "adds_beginning_of_sequence",
    "control",
    "user_defined",
)


def store_tokenizer(tokenizer: Tokenizer) -> tuple[dict[str, Any], list[bytes]] | None:
    """Facts in JSON's types and blocks of bytes; None for kinds that are made from their file each time."""
    codec, vocabulary = tokenizer.codec, tokenizer.vocabulary_facts
    if not isinstance(codec, ByteLevelCodec):
        return None
    facts = {name: getattr(vocabulary, name) for name in _SPECIAL}
    # Models that spell their patterns out may differ from the named in what is merged.
    rules = next(name for name, rules in PRE_TOKENIZERS.items() if rules.patterns == codec.rules.patterns)
    facts |= {"end_tokens": sorted(vocabulary.end_tokens), "rules": rules}
    facts["ignores_merges"] = codec.rules.ignores_merges
    return facts, [*packed_texts(vocabulary.tokens), bytes(vocabulary.types), codec.token_of_byte, codec.merges]


def restore_tokenizer(facts: Mapping[str, Any], parts: Sequence[memoryview], file: str) -> Tokenizer:
    """The tokeniser that was stored; ``file`` is its model's name in messages.

    Raises KeyError, TypeError or ValueError for what :func:`store_tokenizer` cannot have made.
    """
    octets, ends, types, token_of_byte, merges = parts
    tokens = TextArray(octets, ends)
    if len(types) != len(tokens):
        raise ValueError("not as many types as tokens")
    vocabulary = Vocabulary(
        file=file,
        tokens=tokens,
        types=bytes(types),
        end_tokens=frozenset(facts["end_tokens"]),
        **{name: facts[name] for name in _SPECIAL},
    )
    rules = replace(PRE_TOKENIZERS[facts["rules"]], ignores_merges=bool(facts["ignores_merges"]))
    codec = ByteLevelCodec(vocabulary, rules, bytes(token_of_byte), bytes(merges))
    return Tokenizer(vocabulary, codec)
