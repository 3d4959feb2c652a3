"""Guards against: an architecture that computes something plausible but not what it was trained as."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from nybble.formats.gguf import open_gguf
from nybble.graph.passes.lower import lower
from nybble.graph.reference import ReferenceCache, run
from nybble.models.build import architectures, build_graph

from .huggingface import huggingface_logits
from .tiny import TinyModel, gguf_weights, random_weights, tiny_checkpoint, write_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}

MODELS = {
    "llama, GQA": TinyModel(),
    "llama, MHA, tied": TinyModel(kv_heads=4, tied=True),
    "llama, one KV head": TinyModel(kv_heads=1, layers=1),
    "llama, own head dimension": TinyModel(head_dim=32),
    "llama, biases": TinyModel(biases="qkvo"),
    "llama, linear scaling": TinyModel(rope_scaling=LINEAR),
    "llama, llama3 scaling": TinyModel(rope_scaling=LLAMA3, rope_base=500.0, tied=True),
    "qwen2, GQA": TinyModel(architecture="qwen2", biases="qkv", rope_base=1e6, epsilon=1e-6),
    "qwen2, MHA, tied": TinyModel(architecture="qwen2", biases="qkv", kv_heads=4, tied=True),
    "qwen2, linear scaling": TinyModel(architecture="qwen2", biases="qkv", rope_scaling=LINEAR),
    "qwen3, GQA, own head dimension": TinyModel(architecture="qwen3", head_dim=32, rope_base=1e6, epsilon=1e-6),
    "qwen3, MHA, tied": TinyModel(architecture="qwen3", kv_heads=4, tied=True),
    "qwen3, narrow heads": TinyModel(architecture="qwen3", heads=3, kv_heads=3, head_dim=8),
}
TOKENS = np.random.default_rng(1).integers(0, 300, 80).tolist()  # beyond the original 32 positions of LLAMA3


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed")
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_logits_are_those_of_transformers(model: TinyModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", model, gguf_weights(model, random_weights(model)))
    graph = build_graph(open_gguf(path))
    oracle = huggingface_logits(model, TOKENS)
    scale = np.abs(oracle).max()
    for candidate in (graph, lower(graph, lambda linear: None)):
        logits = run(candidate, TOKENS, ReferenceCache(candidate, np.float64))
        assert np.abs(logits - oracle).max() / scale < 1e-5


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_prefill_decode_and_chunks_agree(model: TinyModel) -> None:
    """Guards against positions or causal masks that depend on how a prompt was cut into steps."""
    graph = build_graph(tiny_checkpoint(model))
    tokens = TOKENS[:40]
    whole_cache = ReferenceCache(graph)
    whole = run(graph, tokens, whole_cache)
    stepped_cache = ReferenceCache(graph, weights=whole_cache.weights)
    steps = [tokens[:7], *([token] for token in tokens[7:12]), tokens[12:33], *([token] for token in tokens[33:])]
    stepped = np.concatenate([run(graph, step, stepped_cache) for step in steps])
    assert stepped_cache.length == whole_cache.length == len(tokens)
    np.testing.assert_allclose(stepped, whole, rtol=0, atol=1e-10 * np.abs(whole).max())


def test_a_truncated_cache_forgets() -> None:
    """Guards against keys of discarded tokens leaking into a continued sequence."""
    graph = build_graph(tiny_checkpoint(TinyModel()))
    cache = ReferenceCache(graph)
    run(graph, TOKENS[:10], cache)
    cache.truncate(4)
    resumed = run(graph, TOKENS[20:25], cache)
    fresh = run(graph, [*TOKENS[:4], *TOKENS[20:25]], ReferenceCache(graph))
    np.testing.assert_allclose(resumed, fresh[4:], rtol=1e-9, atol=1e-9)


def test_positions_matter() -> None:
    """Guards against comparisons that would pass without any RoPE: the same tokens in another order differ."""
    graph = build_graph(tiny_checkpoint(TinyModel()))
    forward = run(graph, [5, 9, 7], ReferenceCache(graph), [2])
    swapped = run(graph, [9, 5, 7], ReferenceCache(graph), [2])
    assert np.abs(forward - swapped).max() > 1e-2


def test_the_known_architectures_are_the_modules_with_build() -> None:
    assert set(architectures()) == {"llama", "onnx", "qwen2", "qwen3"}
