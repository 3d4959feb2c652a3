"""From a tokeniser to ``tokenizer.json`` and ``tokenizer_config.json``.

Layouts: https://github.com/huggingface/tokenizers (the serialised form of ``Tokenizer``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..formats.checkpoint import MetadataValue
from ..tokenizer.byte_level import ByteLevelCodec
from ..tokenizer.tokenizer import Tokenizer
from ..tokenizer.vocabulary import TokenType, Vocabulary

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def tokenizer_json(tokenizer: Tokenizer, metadata: Mapping[str, MetadataValue]) -> dict[str, Any] | None:
    """The tokeniser in the layout of ``tokenizer.json``; None for one that is not byte-level BPE.

    ``metadata`` is what ``tokenizer`` was made from; the merges are in it.
    """
    codec, vocabulary = tokenizer.codec, tokenizer.vocabulary_facts
    if not isinstance(codec, ByteLevelCodec):
        return None
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in codec.rules.patterns
    ]
    merges = metadata["tokenizer.ggml.merges"]
    assert isinstance(merges, list)
    types = vocabulary.types
    unknown = vocabulary.unknown
    return {
        "version": "1.0",
        "added_tokens": [
            _added(vocabulary, token)
            for token in range(len(types))
            if types[token] in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, _BYTE_LEVEL]},
        "post_processor": _post_processor(vocabulary),
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": vocabulary.tokens[unknown]
            if unknown is not None and types[unknown] == TokenType.UNKNOWN
            else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": codec.rules.ignores_merges,
            "vocab": {
                vocabulary.tokens[token]: token for token in range(len(types)) if types[token] != TokenType.UNUSED
            },
            "merges": [str(merge).split(" ") for merge in merges],
        },
    }


def tokenizer_config(vocabulary: Vocabulary, chat_template: object) -> dict[str, Any]:
    """What transformers and ONNX Runtime GenAI want to know besides."""
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": vocabulary.adds_beginning_of_sequence,
        "clean_up_tokenization_spaces": False,
    }
    named = {"bos_token": vocabulary.beginning_of_sequence, "eos_token": vocabulary.end_of_sequence}
    settings |= {name: vocabulary.tokens[token] for name, token in named.items() if token is not None}
    if isinstance(chat_template, str):
        settings["chat_template"] = chat_template
    return settings


def _added(vocabulary: Vocabulary, token: int) -> dict[str, Any]:
    is_control = vocabulary.types[token] == TokenType.CONTROL
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": vocabulary.tokens[token], **flags, "special": is_control}


def _post_processor(vocabulary: Vocabulary) -> dict[str, Any]:
    """Puts the token that begins a sequence in front of every text, where the model wants that."""
    begin = vocabulary.beginning_of_sequence
    if begin is None or not vocabulary.adds_beginning_of_sequence:
        return _BYTE_LEVEL
    text = vocabulary.tokens[begin]
    special = {"SpecialToken": {"id": text, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": place}} for place, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, second],
        "special_tokens": {text: {"id": text, "ids": [begin], "tokens": [text]}},
    }
