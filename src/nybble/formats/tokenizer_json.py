"""``tokenizer.json`` of the ``tokenizers`` library, said in the keys that GGUF files use.

Layout: https://github.com/huggingface/tokenizers (the serialised form of ``Tokenizer``). Byte-level BPE becomes
``tokenizer.ggml.model`` gpt2; BPE with byte fallback, which came from SentencePiece, becomes llama.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any

from ..errors import ModelFileError, UnsupportedFeature
from .checkpoint import MetadataValue
from .json_file import MAXIMUM_TOKENIZER_BYTES, read_json

MAXIMUM_TOKENS = 1 << 20
SPACE = "▁"
# Numbers of tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_SPACES = methodcaller("count", " ")
_DIGITS = r"\p{N}"
_BYTE_LEVEL_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern that ``ByteLevel`` cuts by where it is not told to leave that to others."""


def read_tokenizer_json(path: Path, vocabulary: int | None) -> dict[str, MetadataValue]:
    """The tokenizer keys for the file at ``path``, padded to ``vocabulary`` tokens with ones that stand for nothing.

    The pre-tokeniser is given as ``tokenizer.patterns`` and ``tokenizer.ignore_merges``, or ``tokenizer.metaspace``.
    Raises :class:`ModelFileError` for a file that contradicts itself, and :class:`UnsupportedFeature` for parts nybble
    does not have.
    """
    return _Reader(path, read_json(path, MAXIMUM_TOKENIZER_BYTES)).read(vocabulary)


class _Reader:
    def __init__(self, path: Path, parsed: Mapping[str, Any]) -> None:
        self.path = path
        self.parsed = parsed
        model = parsed.get("model")
        if not isinstance(model, dict):
            raise ModelFileError(path, "model", "is missing or no object")
        self.model: dict[str, Any] = model

    def read(self, vocabulary: int | None) -> dict[str, MetadataValue]:
        kind = self.model.get("type", "BPE")
        if kind != "BPE":
            raise self.unsupported("model.type", kind, "BPE")
        for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if self.model.get(key) not in (None, "", 0):
                raise self.unsupported(f"model.{key}", self.model[key], "none")
        tokens, types = self.tokens(vocabulary)
        keys: dict[str, MetadataValue] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
        merges = self.merges()
        if self.model.get("byte_fallback"):
            keys |= self.sentence_piece(tokens, types, merges)
        else:
            keys |= self.byte_level(merges)
        keys["tokenizer.ggml.add_bos_token"] = self.begins_with_special_token()
        return keys

    def tokens(self, vocabulary: int | None) -> tuple[list[str], list[int]]:
        """All tokens by id and their types."""
        spellings = self.model.get("vocab")
        added = self.parsed.get("added_tokens") or []
        if not isinstance(spellings, dict) or not isinstance(added, list):
            raise ModelFileError(self.path, "model.vocab", "is missing, or no object")
        ids = list(spellings.values()) + [token.get("id") if isinstance(token, dict) else None for token in added]
        if not ids or not all(type(identifier) is int and 0 <= identifier < MAXIMUM_TOKENS for identifier in ids):
            raise ModelFileError(self.path, "model.vocab", f"has ids that are no numbers of 0..{MAXIMUM_TOKENS - 1}")
        count = max(max(ids) + 1, min(vocabulary or 0, MAXIMUM_TOKENS))
        tokens, types = [""] * count, [UNUSED] * count
        for text, identifier in spellings.items():
            if types[identifier] != UNUSED:
                raise ModelFileError(self.path, "model.vocab", f"gives the id {identifier} to two tokens")
            tokens[identifier], types[identifier] = text, NORMAL
        unknown = self.model.get("unk_token")
        for token in added:
            text, identifier = token.get("content"), token["id"]
            if not isinstance(text, str) or (types[identifier] != UNUSED and tokens[identifier] != text):
                raise ModelFileError(self.path, "added_tokens", f"gives the id {identifier} to another token")
            tokens[identifier] = text
            types[identifier] = CONTROL if token.get("special") else USER_DEFINED
        if isinstance(unknown, str) and unknown in spellings:
            types[spellings[unknown]] = UNKNOWN
        return tokens, types

    def merges(self) -> list[str]:
        merges = self.model.get("merges")
        if not isinstance(merges, list):
            raise ModelFileError(self.path, "model.merges", "is missing, or no list")
        # Pairs since tokenizers 0.20, one text with a space before.
        pairs = bool(merges) and isinstance(merges[0], list)
        try:
            joined = list(map(" ".join, merges)) if pairs else merges
            if set(map(_SPACES, joined)) <= {1}:
                return joined
        except TypeError:
            pass
        raise ModelFileError(self.path, "model.merges", "has one that is not two tokens")

    def byte_level(self, merges: list[str]) -> dict[str, MetadataValue]:
        normalizer = self.parsed.get("normalizer")
        if normalizer is not None and normalizer != {"type": "NFC"}:
            raise self.unsupported("normalizer", normalizer, "none or NFC")
        patterns: list[str] = []
        encodes_bytes = False
        for step in self.steps("pre_tokenizer", "pretokenizers"):
            match step.get("type"):
                case "Split":
                    pattern = step.get("pattern")
                    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
                    if not isinstance(regex, str) or step.get("behavior") != "Isolated" or step.get("invert"):
                        raise self.unsupported("pre_tokenizer", step, "isolated regular expressions")
                    patterns.append(regex)
                case "Digits":
                    patterns.append(_DIGITS if step.get("individual_digits") else rf"{_DIGITS}+")
                case "ByteLevel" if not step.get("add_prefix_space"):
                    encodes_bytes = True
                    if step.get("use_regex", True):
                        patterns.append(_BYTE_LEVEL_WORDS)
                case _:
                    raise self.unsupported("pre_tokenizer", step, "Split, Digits and ByteLevel without a prefix")
        if not encodes_bytes:
            raise self.unsupported("pre_tokenizer", self.parsed.get("pre_tokenizer"), "ByteLevel at the end")
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.merges": merges,
            "tokenizer.patterns": patterns,
            "tokenizer.ignore_merges": bool(self.model.get("ignore_merges")),
        }

    def sentence_piece(self, tokens: list[str], types: list[int], merges: list[str]) -> dict[str, MetadataValue]:
        """Pieces get scores that put them in the order of the merges that make them."""
        adds_space = False
        metaspace: dict[str, MetadataValue] = {}
        for step in self.steps("normalizer", "normalizers"):
            if step == {"type": "Prepend", "prepend": SPACE}:
                adds_space = True
            elif step != {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}:
                raise self.unsupported("normalizer", step, f"{SPACE} for spaces and in front")
        for step in self.steps("pre_tokenizer", "pretokenizers"):
            scheme = step.get("prepend_scheme")
            if step.get("type") != "Metaspace" or step.get("replacement") != SPACE or step.get("split", True):
                raise self.unsupported("pre_tokenizer", step, "Metaspace that does not split")
            if scheme in ("first", "always"):
                if adds_space:
                    raise self.unsupported("pre_tokenizer", step, "one space in front")
                adds_space, metaspace = True, {"tokenizer.metaspace": scheme}
        ranks: dict[str, int] = {}
        for rank, merge in enumerate(merges):
            ranks.setdefault(merge.replace(" ", "", 1), rank)
        for token, text in enumerate(tokens):
            if types[token] == NORMAL and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                types[token] = BYTE
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": [-float(ranks.get(text, len(merges))) for text in tokens],
            "tokenizer.ggml.add_space_prefix": adds_space,
            **metaspace,
        }

    def begins_with_special_token(self) -> bool:
        """Whether the post-processor puts a token in front of every text."""
        for step in self.steps("post_processor", "processors"):
            if step.get("type") == "TemplateProcessing":
                single = step.get("single")
                return isinstance(single, list) and bool(single) and "SpecialToken" in single[0]
        return False

    def steps(self, key: str, inner: str) -> list[Mapping[str, Any]]:
        """The parts of a component: those of a sequence, or itself, or none."""
        component = self.parsed.get(key)
        if component is None:
            return []
        found = component.get(inner) if isinstance(component, dict) and component.get("type") == "Sequence" else None
        steps = [component] if found is None else found
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise ModelFileError(self.path, key, "is no object, or a sequence of something else")
        return steps

    def unsupported(self, key: str, found: object, known: str) -> UnsupportedFeature:
        shown = " ".join(repr(found).split())
        return UnsupportedFeature(f"{self.path}: {key} is {shown:.160}; nybble has {known}")
