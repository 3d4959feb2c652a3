"""``config.json`` of transformers' decoders, said in the keys that GGUF files use.

Keys: https://huggingface.co/docs/transformers/model_doc/llama#transformers.LlamaConfig, and those of Mistral, Qwen2 and
Qwen3. A key that is neither translated nor known to change nothing is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, UnsupportedFeature
from .checkpoint import MetadataValue

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""``model_type`` and the architecture that computes it."""

_TRANSLATED = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "vocab_size": "vocab_size",
}
# About training, the tokeniser, generation or other programs, or told by the tensors themselves.
_CHANGE_NOTHING = {
    "architectures",
    "model_type",
    "tie_word_embeddings",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "initializer_range",
    "attention_bias",
    "attention_dropout",
    "mlp_bias",
    "pretraining_tp",
    "max_window_layers",
    "is_llama_config",
    "name_or_path",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
}
_FOREIGN_PREFIXES = ("_", "transformers.", "transformers_", "unsloth_")


def read_configuration(file: Path, described: Mapping[str, Any]) -> dict[str, MetadataValue]:
    """The keys of the model that ``described``, the object in ``file``, describes.

    Raises :class:`ModelFileError` for what is malformed, :class:`UnsupportedFeature` for what nybble has not.
    """
    return _Reader(file, described).read()


def frequency_factors(
    file: Path, described: Mapping[str, Any], metadata: Mapping[str, MetadataValue]
) -> NDArray[np.float32] | None:
    """What Llama 3's scaling divides each frequency by, fp32 (head_dim / 2,); None for a model without that scaling."""
    return _Reader(file, described).factors(metadata)


class _Reader:
    def __init__(self, file: Path, described: Mapping[str, Any]) -> None:
        self.file = file
        self.described = described
        # Since transformers 5, all about the rotation lies in an object of its own.
        parameters = described.get("rope_parameters") or described.get("rope_scaling") or {}
        if not isinstance(parameters, dict):
            raise ModelFileError(file, "rope_scaling", "is no object")
        self.rotation: dict[str, Any] = {**parameters}
        self.rotation.setdefault("rope_type", self.rotation.pop("type", "default"))

    def read(self) -> dict[str, MetadataValue]:
        kind = self.described.get("model_type")
        if not isinstance(kind, str) or kind not in ARCHITECTURES:
            self.refuse("model_type", kind, f"model_type {', '.join(ARCHITECTURES)}")
        if self.described.get("quantization_config"):
            self.refuse("quantization_config", "there", "weights in F32, F16 or BF16: fetch the model without")
        prefix = ARCHITECTURES[kind]
        found: dict[str, MetadataValue] = {"general.architecture": prefix}
        base = self.rotation.pop("rope_theta", None)
        given = {**self.described} if base is None else {**self.described, "rope_theta": base}
        for key, value in given.items():
            name = _TRANSLATED.get(key)
            if name is not None and value is not None:
                if not isinstance(value, bool | int | float | str):
                    raise ModelFileError(self.file, key, f"is a {type(value).__name__}; expected a number")
                found[f"{prefix}.{name}"] = value
            elif name is None:
                self.check(key, value)
        if f"{prefix}.attention.key_length" in found:
            found[f"{prefix}.attention.value_length"] = found[f"{prefix}.attention.key_length"]
        window = self.described.get("sliding_window", 4096 if kind == "mistral" else None)
        if type(window) is int and self.described.get("use_sliding_window", kind == "mistral"):
            found[f"{prefix}.attention.sliding_window"] = window
        return found | self.scaling(prefix)

    def check(self, key: str, value: Any) -> None:
        """Refuse a key that may change what the model computes."""
        if key in _CHANGE_NOTHING or key.startswith(_FOREIGN_PREFIXES):
            return
        if key in ("rope_scaling", "rope_parameters", "sliding_window", "use_sliding_window"):
            return  # read elsewhere
        if key == "hidden_act":
            if value != "silu":
                self.refuse(key, value, "silu")
        elif key == "layer_types":
            if not isinstance(value, list) or any(kind != "full_attention" for kind in value):
                self.refuse(key, value, "full attention in all layers")
        elif key == "partial_rotary_factor":
            if value not in (None, 1):
                self.refuse(key, value, "heads that are rotated whole")
        elif value:  # null, false, 0 and nothing at all switch a feature off
            self.refuse(key, value, "no such key, whose meaning nybble does not know and will not guess")

    def scaling(self, prefix: str) -> dict[str, MetadataValue]:
        """How the rotation is stretched: linearly; Llama 3's way has factors of its own."""
        kind, factor = self.rotation["rope_type"], self.rotation.get("factor")
        if kind == "linear" and isinstance(factor, int | float):
            return {f"{prefix}.rope.scaling.type": "linear", f"{prefix}.rope.scaling.factor": float(factor)}
        if kind not in ("default", "llama3"):
            self.refuse("rope_scaling", kind, "rotations that are stretched linearly, as Llama 3's, or not")
        if self.rotation.get("partial_rotary_factor") not in (None, 1):
            self.refuse("partial_rotary_factor", self.rotation["partial_rotary_factor"], "heads that are rotated whole")
        return {}

    def factors(self, metadata: Mapping[str, MetadataValue]) -> NDArray[np.float32] | None:
        """Formula: ``apply_scaling`` of Llama 3.1's reference code (llama_models/llama3/reference_impl/model.py)."""
        if self.rotation["rope_type"] != "llama3":
            return None
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        factor, low, high, original = (self.positive(name) for name in names)
        if low >= high:
            raise ModelFileError(self.file, "low_freq_factor", f"is {low}; expected less than {high}")
        prefix = metadata["general.architecture"]
        heads, hidden = (metadata.get(f"{prefix}.{key}") for key in ("attention.head_count", "embedding_length"))
        base, width = metadata.get(f"{prefix}.rope.freq_base", 1e4), metadata.get(f"{prefix}.attention.key_length")
        if width is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
            width = hidden // heads
        if not isinstance(width, int) or not 2 <= width <= 1 << 16 or not isinstance(base, int | float) or base <= 1:
            raise ModelFileError(self.file, "rope_scaling", "does not fit the width of heads, or rope_theta")
        wavelengths = 2 * math.pi * np.float64(base) ** (np.arange(0, width, 2) / width)
        share = np.clip((original / wavelengths - low) / (high - low), 0, 1)
        return (1 / ((1 - share) / factor + share)).astype(np.float32)

    def positive(self, name: str) -> float:
        value = self.rotation.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise ModelFileError(self.file, f"rope_scaling.{name}", f"is {value!r}; expected a positive number")
        return float(value)

    def refuse(self, key: str, value: object, known: str) -> NoReturn:
        shown = " ".join(repr(value).split())
        raise UnsupportedFeature(f"{self.file}: {key} is {shown:.80}; nybble runs models with {known}")
