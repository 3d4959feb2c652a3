"""Small models for the engine: of every architecture and storage, and some whose answers are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nybble.engine.llm import LLM
from tests.models.tiny import TinyModel, gguf_weights, random_weights, tiny_gguf, write_gguf

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {"llama": {}, "qwen2": {"biases": "qkv"}, "qwen3": {"head_dim": 32}}
STORAGES = ("F32", "Q4_0", "Q4_1", "Q8_0", "mixed")
"""``mixed`` is Q4_K with Q6_K where common recipes have it."""

_MIXED: Mapping[str, Any] = {
    "hidden": 256,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "feed_forward": 256,
    "storages": {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K"},
}


def small_gguf(path: Path, architecture: str = "llama", storage: str = "F32", **changes: Any) -> Path:
    """Write a random model; ``changes`` are those of :class:`TinyModel`."""
    configuration = {"architecture": architecture, **ARCHITECTURES[architecture]}
    if storage == "mixed":
        return tiny_gguf(path, **{**configuration, "storage": "Q4_K", **_MIXED, **changes})
    return tiny_gguf(path, **{**configuration, "storage": storage, **changes})


def scripted_gguf(path: Path, successors: Mapping[int, int], **changes: Any) -> Path:
    """Write a model that answers each token with its successor, and tokens without one with token 0.

    Each token has a feature of its own, no layer adds to it, and the head knows which token follows which feature.
    """
    model = TinyModel(hidden=320, heads=5, kv_heads=5, head_dim=64, feed_forward=32, layers=1, **changes)
    tensors = gguf_weights(model, random_weights(model))
    for name, values in tensors.items():
        if name.endswith("norm.weight"):
            values[:] = 1
        elif "attn_output" in name or "ffn_down" in name:
            values[:] = 0
    tensors["token_embd.weight"][:] = np.eye(model.vocabulary, model.hidden)
    tensors["output.weight"][:] = 0
    for token, successor in successors.items():
        tensors["output.weight"][successor, token] = 1
    return write_gguf(path, model, tensors)


def spoilt_gguf(path: Path, tensor: str, row: int, value: float, **changes: Any) -> Path:
    """Write a random model with one element of one F32 tensor replaced."""
    model = TinyModel(**changes)
    tensors = gguf_weights(model, random_weights(model))
    values = tensors[tensor]
    (values[row] if values.ndim == 2 else values)[-1] = value
    return write_gguf(path, model, tensors)


def some_ids(model: LLM, count: int, seed: int = 0) -> list[int]:
    """Random tokens, none of which ends an answer."""
    plain = sorted(set(range(model.vocabulary)) - model.tokenizer.end_tokens)
    return np.random.default_rng(seed).choice(plain, count).tolist()


def cold_logits(model: LLM, ids: Sequence[int]) -> NDArray[np.uint32]:
    """The bits of the last token's logits, computed in one go by a session that knows nothing."""
    return bits(model.new_session().prefill(ids)[0])


def greedy(model: LLM, ids: Sequence[int], max_tokens: int) -> list[int]:
    """The answer at temperature 0, each token of it computed by a session that knows nothing."""
    answer: list[int] = []
    while len(answer) < max_tokens:
        logits = model.new_session().prefill([*ids, *answer])[0]
        answer.append(int(np.asarray(logits).argmax()))
        if answer[-1] in model.tokenizer.end_tokens or len(ids) + len(answer) > model.context_length:
            break
    return answer


def bits(logits: NDArray[np.float32]) -> NDArray[np.uint32]:
    """For comparisons that tell -0 from 0 and NaN from NaN."""
    return np.ascontiguousarray(logits).view(np.uint32)
