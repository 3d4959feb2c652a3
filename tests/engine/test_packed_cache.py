"""Loading by way of the packed cache: the same model as without, or no use of the cache."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nybble
from nybble.conversion.folder import to_onnx
from nybble.engine import loading
from nybble.formats import file_identity
from nybble.packed.store import PackedStore

from .small_models import ARCHITECTURES, STORAGES, bits, small_gguf, some_ids


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Small and young models are stored as well."""
    monkeypatch.setenv("NYBBLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "SMALLEST_STORED_BYTES", 0)
    monkeypatch.setattr(file_identity, "SETTLED_SECONDS", -1)
    return tmp_path / "cache" / "packed"


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.packed"))


def no_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nybble.graph.compile.compile_plan", lambda *arguments: pytest.fail("packed again"))
    monkeypatch.setattr(loading, "plan_file", lambda *arguments: pytest.fail("planned again"))


def assert_equal(one: nybble.LLM, other: nybble.LLM) -> None:
    """In everything a caller could notice."""
    ids = some_ids(one, 40)
    np.testing.assert_array_equal(bits(one.logits(ids)), bits(other.logits(ids)))
    text = "Hello, the cat sat on 12 mats. naïve \x04 <|im_start|>"
    assert one.tokenize(text) == other.tokenize(text)
    assert [one.detokenize([token]) for token in range(one.vocabulary)] == [
        other.detokenize([token]) for token in range(one.vocabulary)
    ]
    assert one.default_sampling == other.default_sampling
    assert one.has_chat_template == other.has_chat_template
    assert (one.context_length, one.vocabulary) == (other.context_length, other.vocabulary)
    assert one.tokenizer.end_tokens == other.tokenizer.end_tokens
    left, right = one.info, other.info
    assert (left.architecture, left.isa, left.accuracy, left.memory, left.sampling_origins) == (
        right.architecture,
        right.isa,
        right.accuracy,
        right.memory,
        right.sampling_origins,
    )


@pytest.mark.parametrize("accuracy", ["int8", "f32"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_model(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, storage: str, accuracy: str
) -> None:
    extra = {"general.sampling.temp": 0.7, "tokenizer.chat_template": "{{ messages[0].content }}"}
    path = small_gguf(tmp_path / "model.gguf", architecture, storage, extra=extra)
    cold = nybble.load(path, threads=2, accuracy=accuracy)
    assert len(entries(cache)) == 1
    no_packing(monkeypatch)
    assert_equal(cold, nybble.load(path, threads=3, accuracy=accuracy))


def test_the_same_answers_of_the_real_model(
    smollm2: nybble.LLM, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a byte-level tokeniser and a chat template."""
    nybble.load(smollm2_path)
    no_packing(monkeypatch)
    warm = nybble.load(smollm2_path)
    assert_equal(smollm2, warm)
    messages = [{"role": "user", "content": "Why is the sky blue? <|im_end|>"}]
    assert warm.conversation(messages) == smollm2.conversation(messages)
    assert warm.generate("Say hello.", max_tokens=8).ids == smollm2.generate("Say hello.", max_tokens=8).ids


def onnx_folder(folder: Path, **changes: Any) -> Path:
    """A converted model, its weights beside the graph."""
    path = small_gguf(folder.with_suffix(".gguf"), "qwen2", "Q4_0", **changes)
    return to_onnx(path, folder).folder


@pytest.mark.parametrize("opened", ["", "model.onnx"])
def test_the_same_onnx_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: str) -> None:
    """By its folder and by its graph."""
    path = onnx_folder(tmp_path / "model") / opened
    cold = nybble.load(path)
    no_packing(monkeypatch)
    assert_equal(cold, nybble.load(path))


TEMPLATE = "{{ messages[0].content }}!"


def other_weights(folder: Path) -> None:
    weights = folder / "model.onnx.data"
    octets = bytearray(weights.read_bytes())
    octets[100] ^= 0xFF
    weights.write_bytes(octets)


def template_of_its_own(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def another_end_token(folder: Path) -> None:
    genai = folder / "genai_config.json"
    described = json.loads(genai.read_text())
    described["model"]["eos_token_id"] = [5]
    genai.write_text(json.dumps(described))


@pytest.mark.parametrize("opened", ["", "model.onnx"])
@pytest.mark.parametrize("change", [other_weights, template_of_its_own, another_end_token])
def test_every_file_of_an_onnx_model_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], opened: str
) -> None:
    """Also a file that was not there, and was looked for."""
    folder = onnx_folder(tmp_path / "model")
    nybble.load(folder / opened)
    change(folder)
    changed = nybble.load(folder / opened)
    fresh = tmp_path / "fresh"
    folder.rename(fresh)
    monkeypatch.setenv("NYBBLE_CACHE", str(tmp_path / "another"))
    assert_equal(changed, nybble.load(fresh / opened))
    assert (5 in changed.tokenizer.end_tokens) == (change is another_end_token)
    if change is template_of_its_own:
        assert changed.detokenize(changed.conversation([{"role": "user", "content": "the"}])).endswith("the!")


def test_a_link_to_a_graph_is_a_model_with_companions_of_its_own(tmp_path: Path) -> None:
    folder, other = onnx_folder(tmp_path / "model"), tmp_path / "other"
    other.mkdir()
    for file in folder.iterdir():
        os.link(file, other / file.name)
    (other / "genai_config.json").unlink()
    (other / "genai_config.json").write_bytes((folder / "genai_config.json").read_bytes())
    another_end_token(other)
    assert 5 not in nybble.load(folder / "model.onnx").tokenizer.end_tokens
    assert 5 in nybble.load(other / "model.onnx").tokenizer.end_tokens


def test_purposes_do_not_mix(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_gguf(tmp_path / "model.gguf", storage="Q4_0")
    rounded, kept = nybble.load(path), nybble.load(path, accuracy="f32")
    assert len(entries(cache)) == 2
    monkeypatch.setenv("NYBBLE_ISA", "portable")
    assert nybble.load(path).info.isa == "portable"
    assert nybble.load(path).info.isa == "portable"
    monkeypatch.delenv("NYBBLE_ISA")
    no_packing(monkeypatch)
    assert_equal(rounded, nybble.load(path))
    assert_equal(kept, nybble.load(path, accuracy="f32"))


def test_a_changed_model_is_packed_again(tmp_path: Path, cache: Path) -> None:
    """Of the same size, with its time set back."""
    path = small_gguf(tmp_path / "model.gguf", storage="Q8_0")
    before, first = path.stat(), nybble.load(path)
    other = small_gguf(tmp_path / "other.gguf", storage="Q8_0", seed=9)
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second, expected = nybble.load(path), nybble.load(other)
    assert_equal(second, expected)
    ids = some_ids(first, 5)
    assert (bits(first.logits(ids)) != bits(second.logits(ids))).any()


def damaged_weights(octets: bytearray) -> None:
    octets[-100] ^= 1


def cut(octets: bytearray) -> None:
    del octets[-5000:]


def foreign(octets: bytearray) -> None:
    octets[:8] = b"nybblep9"


@pytest.mark.parametrize("damage", [damaged_weights, cut, foreign])
def test_broken_entries_are_made_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytearray], None]
) -> None:
    path = small_gguf(tmp_path / "model.gguf", storage="Q4_1")
    cold = nybble.load(path)
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    octets = bytearray(whole)
    damage(octets)
    entry.write_bytes(octets)
    assert_equal(cold, nybble.load(path))
    assert entries(cache) == [entry]
    assert entry.stat().st_size == len(whole)
    no_packing(monkeypatch)
    assert_equal(cold, nybble.load(path))


@pytest.mark.parametrize(
    "key", ["calls", "matrices", "footprint", "tokenizer", "sampling", "inverse_frequencies", "isa"]
)
@pytest.mark.parametrize("value", [None, 7, "x", [], [[1]], {"a": 1}, [["run", []]], [["__init__", []]]])
def test_forged_descriptions_are_refused(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    key: str,
    value: object,
) -> None:
    """Checksums are no signature: whatever else is in there leads to a packing, and never to a crash."""
    path = small_gguf(tmp_path / "model.gguf", storage="Q4_1", layers=1)
    cold = nybble.load(path)
    real = json.loads
    forged: Callable[..., object] = lambda text, **rest: (  # noqa: E731
        {**found, key: value} if isinstance(found := real(text, **rest), dict) and "calls" in found else found
    )
    if key == "tokenizer" and value is None:
        return  # says that the tokeniser has to be read from the model
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(json, "loads", forged)
        assert_equal(cold, nybble.load(path))


def test_small_models_are_not_stored(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SMALLEST_STORED_BYTES", 1 << 30)
    nybble.load(small_gguf(tmp_path / "model.gguf"))
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_gguf(tmp_path / "model.gguf")
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("NYBBLE_CACHE", str(tmp_path / "file"))
    assert nybble.load(path).generate("hello", max_tokens=2).ids
    assert PackedStore().models() == []
