"""The tokeniser a GGUF file describes."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ModelFileError, UnsupportedFeature
from .byte_level import byte_level_from_gguf
from .pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from .sentence_piece import SentencePieceCodec
from .tokenizer import Tokenizer
from .unigram import UnigramCodec
from .vocabulary import vocabulary_from_gguf

_MODEL_KEY = "tokenizer.ggml.model"
_PRE_KEY = "tokenizer.ggml.pre"
_PATTERNS_KEY = "tokenizer.patterns"
_IGNORE_MERGES_KEY = "tokenizer.ignore_merges"


def tokenizer_from_gguf(metadata: Mapping[str, object], file: str) -> Tokenizer:
    """Build the tokeniser from the ``tokenizer.ggml.*`` keys of ``metadata``; ``file`` is its name in messages.

    Raises ModelFileError for keys that are missing, malformed or contradict each other, UnsupportedFeature for
    tokeniser models and pre-tokenisers nybble does not know. Where the pre-tokeniser is missing, logs a warning and
    uses ``default``.
    """
    model = metadata.get(_MODEL_KEY)
    if not isinstance(model, str):
        raise ModelFileError(file, _MODEL_KEY, "missing or not a text; the file does not say what its tokeniser is")
    if model == "gpt2":
        rules = _pre_tokenizer(metadata, file)
        vocabulary = vocabulary_from_gguf(metadata, file, adds_beginning_of_sequence=rules.adds_beginning_of_sequence)
        return Tokenizer(vocabulary, byte_level_from_gguf(vocabulary, metadata, rules))
    if model == "llama":
        vocabulary = vocabulary_from_gguf(metadata, file, adds_beginning_of_sequence=True)
        return Tokenizer(vocabulary, SentencePieceCodec(vocabulary, metadata))
    if model == "t5":
        vocabulary = vocabulary_from_gguf(metadata, file, adds_beginning_of_sequence=False)
        return Tokenizer(vocabulary, UnigramCodec(vocabulary, metadata))
    raise UnsupportedFeature(f"{file}: {_MODEL_KEY}: {model!r} is not supported; nybble has gpt2, llama and t5")


def _pre_tokenizer(metadata: Mapping[str, object], file: str) -> PreTokenizer:
    patterns = metadata.get(_PATTERNS_KEY)
    if isinstance(patterns, list):
        return _known_pre_tokenizer(tuple(patterns), metadata.get(_IGNORE_MERGES_KEY) is True, file)
    name = metadata.get(_PRE_KEY)
    if name is None or name == "":
        import logging

        logging.getLogger(__name__).warning(
            "%s: %s is missing; words are cut by the rules of 'default', which may make answers worse. "
            "Convert the model again with a current converter.",
            file,
            _PRE_KEY,
        )
        name = "default"
    rules = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if rules is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedFeature(f"{file}: {_PRE_KEY}: {name!r} is not supported; nybble has {known}")
    return rules


def _known_pre_tokenizer(patterns: tuple[object, ...], ignores_merges: bool, file: str) -> PreTokenizer:
    """The pre-tokeniser with these patterns, as a file that spells them out means.

    Only patterns of :data:`PRE_TOKENIZERS` are used: a regular expression of a stranger may take forever.
    """
    for rules in PRE_TOKENIZERS.values():
        if rules.patterns == patterns:
            return PreTokenizer(rules.patterns, ignores_merges)
    shown = ", ".join(repr(pattern) for pattern in patterns)
    raise UnsupportedFeature(f"{file}: it cuts text by the patterns {shown:.300}, which are none that nybble knows")
