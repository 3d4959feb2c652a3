"""GGUF models as ONNX folders, run by ONNX Runtime and by nybble."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nybble
from nybble.conversion.folder import to_onnx
from nybble.errors import InvalidParameter, UnsupportedFeature
from nybble.formats.onnx import open_onnx
from nybble.formats.onnx_accuracy_level import patch_accuracy_level
from nybble.formats.open import open_checkpoint
from nybble.graph.graph import Graph
from nybble.graph.reference import ReferenceCache, run
from nybble.inspection.inspect import inspect
from nybble.models.build import build_graph
from nybble.quant.blocks import dequantise
from tests.engine.small_models import ARCHITECTURES, STORAGES, bits, small_gguf, some_ids
from tests.models.tiny import float_tensor

onnxruntime = pytest.importorskip("onnxruntime")
EXACT = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0")
"""Storages whose weights nybble packs to the same bits from the written model."""
CLEAN = 2.0**-15
"""512 roundings of fp32 that all go the same way: what arithmetic may do to a logit, relative to the largest."""
TOKENS = [5, 71, 3, 3, 40, 12, 79, 0, 33]


def runtime_logits(folder: Path, ids: list[int], step: int) -> np.ndarray:
    """Logits of all ``ids``, ``step`` at a time, as ``genai_config.json`` says to call the model."""
    described = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    path = folder / described["filename"]
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs, outputs = described["inputs"], described["outputs"]
    layers = range(described["num_hidden_layers"])
    empty = np.zeros((1, described["num_key_value_heads"], 0, described["head_size"]), np.float32)
    parts = ("key", "value")
    past = {inputs[f"past_{part}_names"].replace("%d", str(layer)): empty for layer in layers for part in parts}
    logits = []
    for start in range(0, len(ids), step):
        some = ids[start : start + step]
        feeds: dict[str, Any] = {inputs["input_ids"]: np.array([some], np.int64), **past}
        feeds[inputs["attention_mask"]] = np.ones((1, start + len(some)), np.int64)
        present = [outputs[f"present_{part}_names"].replace("%d", str(layer)) for layer in layers for part in parts]
        found = session.run([outputs["logits"], *present], feeds)
        logits.append(found[0][0])
        past = dict(zip(past, found[1:], strict=True))
    return np.concatenate(logits)


def with_float_weights(path: Path) -> Graph:
    """The graph of a model with the weights its file means; packing for the kernels would round scales to fp16."""
    graph = build_graph(open_checkpoint(path))
    return replace(graph, tensors={name: float_tensor(name, dequantise(of)) for name, of in graph.tensors.items()})


def float_activations(folder: Path) -> Path:
    """``folder`` with a model whose linears ask for fp32 activations."""
    model = folder / "model.onnx"
    if any(node.op_type == "MatMulNBits" for node in open_onnx(model).nodes):
        patch_accuracy_level(model, folder / "float.onnx", 1)
        (folder / "float.onnx").replace(model)
    return folder


@pytest.mark.parametrize("storage", ["F16", "BF16", "Q5_0", "Q5_1", *STORAGES])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("requantise", [False, True])
def test_onnx_runtime_computes_the_same(tmp_path: Path, architecture: str, storage: str, requantise: bool) -> None:
    path = small_gguf(tmp_path / "model.gguf", architecture, storage, tied=storage == "Q8_0")
    written = to_onnx(path, tmp_path / "model", requantise=requantise)
    # What is rounded to 8 bits is another model, whose weights test_blocked.py compares.
    graph = with_float_weights(written.folder if written.requantised else path)
    expected = run(graph, TOKENS, ReferenceCache(graph, np.float32))
    found = runtime_logits(float_activations(written.folder), TOKENS, step=4)
    assert np.abs(found - expected).max() < CLEAN * np.abs(expected).max()
    has_offsets = storage in ("Q4_1", "mixed")
    assert bool(written.requantised) == (storage == "Q5_1" or (requantise and has_offsets))
    assert bool(written.float_zero_points) == (not requantise and has_offsets)


@pytest.mark.parametrize("storage", EXACT)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("accuracy", ["int8", "f32"])
def test_nybble_computes_the_same_bits(tmp_path: Path, architecture: str, storage: str, accuracy: str) -> None:
    path = small_gguf(tmp_path / "model.gguf", architecture, storage)
    folder = to_onnx(path, tmp_path / "model").folder
    kv = "fp32" if accuracy == "f32" else "fp16"
    original, converted = (nybble.load(model, threads=1, accuracy=accuracy, kv=kv) for model in (path, folder))
    ids = some_ids(original, 12)
    expected, found = (np.asarray(model.new_session().prefill(ids)[0]) for model in (original, converted))
    if (storage, accuracy) == ("Q4_1", "f32"):  # zero points are rounded to fp32, and not to fp16 after that
        assert np.abs(found - expected).max() < CLEAN * np.abs(expected).max()
    else:
        assert np.array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("storage", ["Q4_0", "Q4_1", "mixed"])
@pytest.mark.parametrize("tied", [False, True])
def test_nybble_in_fp32_computes_what_onnx_runtime_does(tmp_path: Path, storage: str, tied: bool) -> None:
    """On the same file: with fp32 activations and cache, what is left is the order of sums."""
    changes: dict[str, Any] = {"storages": {"token_embd": "Q6_K", "attn_v": "Q6_K"}} if storage == "mixed" else {}
    path = small_gguf(tmp_path / "model.gguf", "qwen3", storage, tied=tied, **changes)
    folder = float_activations(to_onnx(path, tmp_path / "model").folder)
    model = nybble.load(folder, threads=1, accuracy="f32", kv="fp32")
    ids = some_ids(model, 40)
    found, expected = model.logits(ids), runtime_logits(folder, ids, step=7)
    longer = 4 if storage == "mixed" else 1  # its sums are
    assert np.abs(found - expected).max() < longer * CLEAN * np.abs(expected).max()


def test_the_tokeniser_and_what_goes_with_it(tmp_path: Path) -> None:
    path = small_gguf(tmp_path / "model.gguf", "qwen2", "Q8_0", extra={"general.sampling.temp": 0.25})
    folder = to_onnx(path, tmp_path / "model").folder
    original, converted = (nybble.load(model, threads=1) for model in (path, folder))
    text = "Ein Größenvergleich: the 1234 in 'the'\n\n  <|im_end|> 漢字 🙂"
    assert converted.tokenizer.encode(text) == original.tokenizer.encode(text)
    assert converted.tokenizer.end_tokens == original.tokenizer.end_tokens
    assert converted.context_length == original.context_length
    messages = [{"role": "user", "content": text}]
    assert converted.conversation(messages) == original.conversation(messages)
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = text.replace("<|im_end|>", "")
    assert theirs.encode(plain).ids == original.tokenizer.encode(plain)
    assert theirs.decode(theirs.encode(plain).ids) == plain
    search = json.loads((folder / "genai_config.json").read_text())["search"]
    assert (search["do_sample"], search["temperature"]) == (True, 0.25)


@pytest.mark.parametrize("storage", ["F16", "Q8_0"])
@pytest.mark.parametrize("tied", [False, True])
def test_what_inspection_says_of_it(tmp_path: Path, storage: str, tied: bool) -> None:
    """Guards against kinds that are listed layer by layer, and an embedding that is not found behind other ops."""
    path = small_gguf(tmp_path / "model.gguf", "llama", storage, tied=tied, layers=3)
    found = inspect(to_onnx(path, tmp_path / "model").folder)
    assert found.tied is tied
    assert found.embedding.startswith("Gather")
    assert found.parameters == sum(tensor.elements for tensor in open_checkpoint(path).tensors.values())
    assert [kind.count for kind in found.linears] == [3] * 7 + [1]


def test_nothing_is_overwritten_or_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_gguf(tmp_path / "model.gguf")
    folder = tmp_path / "model"
    monkeypatch.setattr("nybble.formats.onnx_writer.GraphWriter.write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        to_onnx(path, folder)
    assert [found.name for found in tmp_path.iterdir()] == ["model.gguf"]
    monkeypatch.undo()
    to_onnx(path, folder)
    with pytest.raises(InvalidParameter, match="is there already"):
        to_onnx(path, folder)
    with pytest.raises(InvalidParameter, match="is no folder"):
        to_onnx(path, tmp_path / "missing" / "model")
    with pytest.raises(UnsupportedFeature, match="is an ONNX model already"):
        to_onnx(folder, tmp_path / "again")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["model", "model.gguf"]
