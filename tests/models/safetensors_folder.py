"""Tiny random models as folders of safetensors, as the hub has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nybble.conversion.tokenizer import tokenizer_config, tokenizer_json
from nybble.tokenizer.gguf_tokenizer import tokenizer_from_gguf

from .tiny import TinyModel, random_weights, tokenizer

safetensors = pytest.importorskip("safetensors.numpy")
FAMILIES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def configuration(model: TinyModel, **changes: Any) -> dict[str, Any]:
    """``config.json`` as published models have it."""
    described: dict[str, Any] = {
        "architectures": [f"{FAMILIES[model.architecture]}ForCausalLM"],
        "model_type": model.architecture,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.feed_forward,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": model.context_length,
        "rms_norm_eps": model.epsilon,
        "rope_theta": model.rope_base,
        "rope_scaling": dict(model.rope_scaling) if model.rope_scaling else None,
        "vocab_size": model.vocabulary,
        "tie_word_embeddings": model.tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "eos_token_id": tokenizer(model)["tokenizer.ggml.eos_token_id"],
        "bos_token_id": tokenizer(model)["tokenizer.ggml.bos_token_id"],
        **changes,
    }
    if model.architecture == "qwen3" or model.head_dim * model.heads != model.hidden:
        described["head_dim"] = model.head_dim
    return described


def write_folder(path: Path, model: TinyModel, dtype: Any = np.float32, shards: int = 1, **changes: Any) -> Path:
    """Write ``model`` to the folder ``path``; ``changes`` replace or join entries of ``config.json``."""
    path.mkdir(parents=True)
    _write_json(path / "config.json", configuration(model, **changes))
    known = tokenizer(model)
    codec = tokenizer_from_gguf(known, str(path))
    _write_json(path / "tokenizer.json", tokenizer_json(codec, known))
    settings = tokenizer_config(codec.vocabulary_facts, known["tokenizer.chat_template"])
    _write_json(path / "tokenizer_config.json", settings)
    weights = {name: np.ascontiguousarray(value.astype(dtype)) for name, value in random_weights(model).items()}
    if shards == 1:
        safetensors.save_file(weights, path / "model.safetensors")
        return path
    places = {name: f"model-{place % shards}.safetensors" for place, name in enumerate(weights)}
    for file in set(places.values()):
        own = {name: value for name, value in weights.items() if places[name] == file}
        safetensors.save_file(own, path / file)
    _write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})
    return path


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
