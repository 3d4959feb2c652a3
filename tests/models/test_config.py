"""Guards against: hostile or unknown configurations that are half understood (attack S7: absurd numbers)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import ModelFileError, NybbleError, UnsupportedFeature
from nybble.formats.checkpoint import Checkpoint
from nybble.graph.graph import Graph
from nybble.models.build import build_graph
from nybble.models.config import TransformerConfig
from nybble.models.rope import LinearScaling
from nybble.quant.storage import StorageType

from .tiny import TinyModel, float_tensor, tiny_checkpoint

TINY = tiny_checkpoint(TinyModel(layers=1))


def with_metadata(checkpoint: Checkpoint = TINY, **changes: Any) -> Checkpoint:
    """``checkpoint`` with llama keys changed; ``__`` stands for the dot, None removes the key."""
    metadata = dict(checkpoint.metadata)
    for key, value in changes.items():
        metadata[f"llama.{key.replace('__', '.')}"] = value
    return replace(checkpoint, metadata={key: value for key, value in metadata.items() if value is not None})


def with_tensors(**arrays: np.ndarray | None) -> Checkpoint:
    """TINY with tensors added or replaced; ``__`` stands for the dot, None removes the tensor."""
    tensors: dict[str, Any] = dict(TINY.tensors)
    for key, array in arrays.items():
        name = key.replace("__", ".")
        tensors[name] = None if array is None else float_tensor(name, array)
    return replace(TINY, tensors={name: tensor for name, tensor in tensors.items() if tensor is not None})


def refusal(checkpoint: Checkpoint) -> NybbleError:
    started = time.monotonic()
    with pytest.raises(NybbleError) as caught:
        build_graph(checkpoint)
    assert time.monotonic() - started < 1
    assert "\n" not in str(caught.value)
    assert "tiny.gguf" in str(caught.value)
    return caught.value


def test_a_good_file_is_read_as_it_is() -> None:
    config = TransformerConfig.from_gguf(with_metadata(rope__scaling__type="linear", rope__scaling__factor=2.0))
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (1, 64, 4, 2, 16)
    assert (config.feed_forward, config.vocabulary, config.context_length, config.tied) == (96, 300, 256, False)
    assert (config.rope_base, config.rope_scaling) == (10000.0, LinearScaling(2.0))


NUMBERS = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "vocab_size",
]
HOSTILE = [0, -1, 3, 2**31, 2**32, 2**63, -(2**63), 10**9, float("nan"), float("inf"), -1.5, "64", True, [64, 64]]
REQUIRED = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
]
LEGAL = {("rope.freq_base", 3), ("rope.freq_base", 2**31), ("rope.freq_base", 2**32), ("rope.freq_base", 10**9)}
LEGAL |= {("context_length", 3)}


@pytest.mark.parametrize("value", HOSTILE, ids=str)
@pytest.mark.parametrize("key", NUMBERS)
def test_hostile_numbers_are_refused(key: str, value: Any) -> None:
    checkpoint = with_metadata(**{key: value})
    if not isinstance(value, list | bool | str) and (key, value) in LEGAL:
        assert isinstance(build_graph(checkpoint), Graph)
    else:
        refusal(checkpoint)


@pytest.mark.parametrize("value", [0, -1, 2**63, float("nan"), "64", True], ids=str)
@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_out_of_range_is_named_with_what_was_expected(key: str, value: Any) -> None:
    error = refusal(with_metadata(**{key: value}))
    assert isinstance(error, ModelFileError)
    assert f"llama.{key}" in str(error) and repr(value) in str(error) and "expected" in str(error)


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_number_is_named(key: str) -> None:
    error = refusal(with_metadata(**{key: None}))
    assert isinstance(error, ModelFileError) and error.where == f"llama.{key}" and "missing" in error.problem


def test_heads_that_do_not_divide() -> None:
    error = refusal(with_metadata(attention__head_count_kv=3))
    assert "head_count_kv" in str(error) and "divisor" in str(error)
    error = refusal(with_metadata(attention__head_count=6, attention__head_count_kv=3, attention__key_length=None))
    assert "key_length" in str(error) and "64 features" in str(error)


def test_an_odd_head_dimension() -> None:
    error = refusal(with_metadata(attention__key_length=15, attention__value_length=15, rope__dimension_count=15))
    assert isinstance(error, ModelFileError) and "even" in str(error)


@pytest.mark.parametrize(
    ("key", "value", "feature"),
    [
        ("expert_count", 8, "experts"),
        ("expert_used_count", 2, "experts"),
        ("attention.sliding_window", 128, "sliding window"),
        ("attn_logit_softcapping", 50.0, "softcap"),
        ("final_logit_softcapping", 30.0, "softcap"),
        ("use_parallel_residual", True, "parallel residual"),
        ("attention.clamp_kqv", 8.0, "clamp"),
        ("attention.max_alibi_bias", 8.0, "ALiBi"),
        ("attention.causal", False, "bidirectional"),
        ("attention.scale", 0.3, "attention scale"),
        ("logit_scale", 0.1, "logit scale"),
        ("residual_scale", 0.1, "residual scale"),
        ("embedding_scale", 12.0, "embedding scale"),
        ("hidden_activation", "gelu", "silu"),
        ("rope.scaling.type", "yarn", "linear"),
        ("rope.scaling.type", "longrope", "linear"),
        ("rope.scaling.attn_factor", 1.5, "attention factor"),
        ("rope.dimension_count", 8, "partial rotary"),
        ("attention.value_length", 8, "value lengths"),
        ("feed_forward_length", [96, 64], "for all layers"),
        ("attention.something_new", 1, "does not know"),
    ],
)
def test_unknown_features_are_refused_by_name(key: str, value: Any, feature: str) -> None:
    error = refusal(with_metadata(**{key: value}))
    assert isinstance(error, UnsupportedFeature)
    assert f"llama.{key}" in str(error) and feature in str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 0),
        ("attention.sliding_window", 0),
        ("attention.sliding_window", 256),
        ("attn_logit_softcapping", 0.0),
        ("use_parallel_residual", False),
        ("attention.causal", True),
        ("hidden_activation", "silu"),
        ("rope.scaling.type", "none"),
        ("rope.scaling.finetuned", True),
        ("tensor_data_layout", "Meta AI original pth"),
    ],
)
def test_features_that_are_switched_off_are_accepted(key: str, value: Any) -> None:
    assert isinstance(build_graph(with_metadata(**{key: value})), Graph)


def test_scaling_of_type_none_ignores_the_factor() -> None:
    checkpoint = with_metadata(rope__scaling__type="none", rope__scaling__factor=4.0)
    assert TransformerConfig.from_gguf(checkpoint).rope_scaling is None


def test_two_scalings_at_once() -> None:
    checkpoint = with_metadata(with_tensors(rope_freqs__weight=np.ones(8)), rope__scaling__factor=4.0)
    assert "rope_freqs.weight" in str(refusal(checkpoint))


@pytest.mark.parametrize("factors", [np.ones(7), np.zeros(8), np.full(8, np.nan), np.full(8, -1.0), np.ones((2, 4))])
def test_bad_frequency_factors(factors: np.ndarray) -> None:
    error = refusal(with_tensors(rope_freqs__weight=factors))
    assert isinstance(error, ModelFileError) and error.where == "rope_freqs.weight"


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    for name in ("mamba", "config", "build", "os", "../llama", ""):
        checkpoint = replace(TINY, metadata={**TINY.metadata, "general.architecture": name})
        error = refusal(checkpoint)
        assert (
            isinstance(error, UnsupportedFeature)
            and "llama, onnx, qwen2, qwen3" in str(error)
            and repr(name) in str(error)
        )


def test_vocabulary_must_agree_with_the_table() -> None:
    error = refusal(replace(TINY, metadata={**TINY.metadata, "tokenizer.ggml.tokens": ["a", "b"]}))
    assert "tokenizer.ggml.tokens" in str(error) and "2 tokens" in str(error) and "300" in str(error)
    assert "llama.vocab_size" in str(refusal(with_metadata(vocab_size=299)))


@pytest.mark.parametrize("name", sorted(set(TINY.tensors) - {"output.weight"}))
def test_a_missing_tensor_is_named(name: str) -> None:
    error = refusal(replace(TINY, tensors={key: tensor for key, tensor in TINY.tensors.items() if key != name}))
    assert isinstance(error, ModelFileError) and error.where == name and "missing" in error.problem


@pytest.mark.parametrize("name", sorted(set(TINY.tensors) - {"token_embd.weight"}))
def test_a_tensor_of_another_shape_is_named(name: str) -> None:
    longer = tuple(extent + 1 for extent in TINY.tensors[name].shape)
    error = refusal(replace(TINY, tensors={**TINY.tensors, name: float_tensor(name, np.zeros(longer))}))
    assert isinstance(error, ModelFileError) and error.where == name
    assert str(longer) in str(error) and str(TINY.tensors[name].shape) in str(error)


def test_without_an_output_tensor_the_head_is_the_embedding() -> None:
    graph = build_graph(with_tensors(output__weight=None))
    assert graph.ops[-1].weights == ("token_embd.weight",)  # type: ignore[union-attr]


def test_leftover_tensors_are_named_up_to_three() -> None:
    extra = {f"blk__0__ffn_{part}__bias": np.zeros(96) for part in ("gate", "up", "down")}
    error = refusal(with_tensors(**extra, blk__0__attn_sinks__weight=np.zeros(4)))
    assert isinstance(error, UnsupportedFeature)
    assert str(error).count("blk.0.") == 3 and "1 more" in str(error) and "blk.0.ffn_gate.bias" in str(error)


def test_layers_beyond_the_block_count_are_leftovers() -> None:
    checkpoint = tiny_checkpoint(TinyModel(layers=2))
    error = refusal(with_metadata(checkpoint, block_count=1))
    assert isinstance(error, UnsupportedFeature) and "blk.1." in str(error)


def test_quantised_norms_are_refused() -> None:
    tensor = TINY.tensors["output_norm.weight"]
    quantised = replace(tensor, storage=StorageType.Q8_0, rows=np.zeros((1, 68), np.uint8))
    error = refusal(replace(TINY, tensors={**TINY.tensors, tensor.name: quantised}))
    assert isinstance(error, UnsupportedFeature) and "output_norm.weight is stored as Q8_0" in str(error)


def test_qwen2_needs_its_biases() -> None:
    error = refusal(tiny_checkpoint(TinyModel(architecture="qwen2", biases="qk")))
    assert isinstance(error, ModelFileError) and error.where == "blk.0.attn_v.bias"


def test_qwen3_needs_its_head_norms() -> None:
    checkpoint = tiny_checkpoint(TinyModel(architecture="qwen3"))
    name = "blk.1.attn_k_norm.weight"
    error = refusal(replace(checkpoint, tensors={key: t for key, t in checkpoint.tensors.items() if key != name}))
    assert isinstance(error, ModelFileError) and error.where == name


VALUES = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(0, 70),
    st.floats(),
    st.booleans(),
    st.text(max_size=50),
    st.lists(st.integers(0, 100), max_size=3),
)
KEYS = [
    *sorted(key for key in TINY.metadata if key.startswith("llama.")),
    "llama.attention.key_length",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.attention.sliding_window",
    "llama.new",
]


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
def test_any_metadata_builds_or_is_refused(changes: dict[str, Any]) -> None:
    """No other exception, no hang, no graph that its own check would refuse."""
    try:
        build_graph(replace(TINY, metadata={**TINY.metadata, **changes}))
    except NybbleError as error:
        assert "\n" not in str(error)
