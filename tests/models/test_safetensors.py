"""Folders of safetensors compute what transformers does, and what GGUF files of the same weights do."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nybble
from nybble.conversion.folder import to_onnx
from nybble.engine import loading
from nybble.errors import ModelFileError, NybbleError, UnsupportedFeature
from nybble.formats import file_identity
from nybble.formats.open import open_checkpoint
from nybble.graph.graph import Graph
from nybble.graph.reference import ReferenceCache, run
from nybble.models.build import build_graph
from tests.engine.small_models import cold_logits, some_ids

from .huggingface import huggingface_logits
from .safetensors_folder import safetensors, write_folder
from .test_architectures import LLAMA3, MODELS, TOKENS
from .tiny import TinyModel, gguf_weights, random_weights, tiny_gguf, write_gguf

QUANTISED = {"storage": "Q4_0", "storages": {"token_embd": "Q8_0", "output": "Q8_0"}}


def unquantised(path: Path) -> Graph:
    """The graph of a folder with its floats as they are."""
    graph = build_graph(open_checkpoint(path))
    tensors = {name: replace(tensor, quantised_as=None) for name, tensor in graph.tensors.items()}
    return replace(graph, tensors=tensors)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed")
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_logits_are_those_of_transformers(model: TinyModel, tmp_path: Path) -> None:
    oracle = huggingface_logits(model, TOKENS)
    graph = unquantised(write_folder(tmp_path / "model", model, attention_bias="o" in model.biases))
    logits = run(graph, TOKENS, ReferenceCache(graph, np.float64))
    assert np.abs(logits - oracle).max() / np.abs(oracle).max() < 1e-5


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed")
@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_what_transformers_writes_is_read(family: str, tmp_path: Path) -> None:
    """With all the keys it writes today, in bf16."""
    import torch
    import transformers

    settings: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    settings |= {"sliding_window": None} if family == "Mistral" else {}
    torch.manual_seed(0)
    described = getattr(transformers, f"{family}Config")(**settings, bos_token_id=264, eos_token_id=266)
    made = getattr(transformers, f"{family}ForCausalLM")(described).to(torch.bfloat16)
    folder = write_folder(tmp_path / "model", TinyModel())
    (folder / "model.safetensors").unlink()
    made.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    graph = unquantised(folder)
    logits = run(graph, TOKENS[:20], ReferenceCache(graph, np.float64))
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = oracle(torch.tensor([TOKENS[:20]])).logits[0].numpy()
    assert np.abs(logits - expected).max() / np.abs(expected).max() < 1e-5


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("accuracy", ["int8", "f32"])
def test_the_same_bits_as_from_gguf(tmp_path: Path, architecture: str, tied: bool, accuracy: str) -> None:
    """Linears as Q4_0, the embedding and the head as Q8_0."""
    changes: dict[str, Any] = {"biases": "qkv"} if architecture == "qwen2" else {}
    model = TinyModel(architecture=architecture, tied=tied, rope_scaling=LLAMA3, rope_base=500.0, **changes)
    path = write_gguf(tmp_path / "model.gguf", model, gguf_weights(model, random_weights(model)), **QUANTISED)
    folder = write_folder(tmp_path / "model", model, shards=3)
    expected, found = (nybble.load(one, accuracy=accuracy) for one in (path, folder))
    ids = some_ids(expected, 40)
    np.testing.assert_array_equal(cold_logits(found, ids), cold_logits(expected, ids))
    text = "the 12 cats <|im_end|> naïve"
    assert found.tokenize(text) == expected.tokenize(text)
    messages = [{"role": "user", "content": text}]
    assert found.conversation(messages) == expected.conversation(messages)
    assert found.context_length == expected.context_length


def test_the_packed_cache_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NYBBLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "SMALLEST_STORED_BYTES", 0)
    monkeypatch.setattr(file_identity, "SETTLED_SECONDS", -1)
    folder = write_folder(tmp_path / "model", TinyModel(), np.float16, shards=2)
    cold = nybble.load(folder)
    with monkeypatch.context() as patched:
        patched.setattr(loading, "plan_file", lambda *arguments: pytest.fail("planned again"))
        warm = nybble.load(folder)
    ids = some_ids(cold, 20)
    np.testing.assert_array_equal(cold_logits(warm, ids), cold_logits(cold, ids))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-2}))
    assert (cold_logits(nybble.load(folder), ids) != cold_logits(cold, ids)).any()


def test_widths_that_blocks_do_not_divide_stay_floats(tmp_path: Path) -> None:
    model = TinyModel(feed_forward=100)
    folder = write_folder(tmp_path / "model", model)
    path = tiny_gguf(
        tmp_path / "model.gguf",
        feed_forward=100,
        storage="Q4_0",
        storages={"token_embd": "Q8_0", "output": "Q8_0", "ffn_down": "F32"},
    )
    expected, found = (nybble.load(one) for one in (path, folder))
    ids = some_ids(expected, 20)
    np.testing.assert_array_equal(cold_logits(found, ids), cold_logits(expected, ids))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("tied", [False, True])
def test_converted_to_onnx(tmp_path: Path, dtype: Any, tied: bool) -> None:
    """ONNX Runtime computes the same from it, and nybble the same bits."""
    from tests.conversion.test_gguf import CLEAN, float_activations, runtime_logits, with_float_weights

    folder = write_folder(tmp_path / "model", TinyModel(tied=tied), dtype)
    written = to_onnx(folder, tmp_path / "onnx")
    assert written.has_tokenizer and not written.requantised and not written.float_zero_points
    original, converted = (nybble.load(one) for one in (folder, written.folder))
    ids = some_ids(original, 24)
    np.testing.assert_array_equal(cold_logits(converted, ids), cold_logits(original, ids))
    assert converted.conversation([{"role": "user", "content": "the"}]) == original.conversation(
        [{"role": "user", "content": "the"}]
    )
    graph = with_float_weights(written.folder)
    expected = run(graph, ids, ReferenceCache(graph, np.float32))
    found = runtime_logits(float_activations(written.folder), ids, step=10)
    assert np.abs(found - expected).max() < CLEAN * np.abs(expected).max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"model_type": None}, "model_type is None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"num_local_experts": 8}, "num_local_experts is 8"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling is 'yarn'"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": {**LLAMA3, "factor": -1}}, r"rope_scaling\.factor"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}}, "low_freq_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_size": [64]}, "hidden_size: is a list"),
        ({"hidden_size": "64"}, "embedding_length"),
        ({"num_hidden_layers": 3}, "blk.2"),
        ({"num_hidden_layers": 1}, "has tensors that"),
        ({"vocab_size": 301}, "301"),
        ({"model_type": "mistral"}, "sliding"),
        ({"tie_word_embeddings": True, "secret_of_its_own": 1}, "secret_of_its_own"),
        ({"eos_token_id": None, "tokenizer": "x"}, "tokenizer is 'x'"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_folder(tmp_path / "model", TinyModel(context_length=8192), **changes)
    with pytest.raises(NybbleError, match=message) as raised:
        build_graph(open_checkpoint(folder))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [None, -1, 0, True, 1 << 70, 1e300, "x", [], [[]], {}, {"rope_type": []}])
def test_any_value_is_run_or_refused(tmp_path: Path, value: Any) -> None:
    """Guards against errors that name no file, and against anything else than an error."""
    folder = write_folder(tmp_path / "model", TinyModel(rope_scaling=LLAMA3, context_length=64))
    described = json.loads((folder / "config.json").read_text())
    for key in described:
        (folder / "config.json").write_text(json.dumps(described | {key: value}))
        with contextlib.suppress(NybbleError):
            build_graph(open_checkpoint(folder))
    for key in LLAMA3:
        (folder / "config.json").write_text(json.dumps(described | {"rope_scaling": LLAMA3 | {key: value}}))
        with contextlib.suppress(NybbleError):
            build_graph(open_checkpoint(folder))


def test_files_that_are_missing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TinyModel())
    for name in ("tokenizer.json", "config.json"):
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(ModelFileError, match=name):
            open_checkpoint(folder)
        (folder / name).write_bytes(content)
    assert open_checkpoint(folder / "model.safetensors").path == folder
    weights = random_weights(TinyModel())
    del weights["lm_head.weight"]
    safetensors.save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"lm_head\.weight"):
        open_checkpoint(folder)


def test_weights_of_other_types_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TinyModel())
    weights = random_weights(TinyModel()) | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    safetensors.save_file(weights, folder / "model.safetensors")
    build_graph(open_checkpoint(folder))  # a buffer that old transformers saved
    safetensors.save_file(weights | {"lm_head.weight": np.ones((300, 64), np.int8)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedFeature, match=r"lm_head\.weight is I8"):
        open_checkpoint(folder)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TinyModel())
    weights = random_weights(TinyModel())
    weights["model.layers.1.mlp.up_proj.weight"][7, 50] = np.nan
    safetensors.save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight row 7"):
        nybble.load(folder)
