"""The types of KV cache as a user meets them: what each takes, answers and cannot do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nybble
from nybble.engine import loading
from nybble.errors import InsufficientMemory, InvalidParameter, NumericalError, UnsupportedFeature
from nybble.formats import file_identity
from nybble.graph.kv_type import KVType
from nybble.machine.memory import MemoryAvailable

from .small_models import bits, greedy, scripted_gguf, small_gguf, some_ids, spoilt_gguf

KINDS = [kv.value for kv in KVType]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_gguf(tmp_path_factory.mktemp("models") / "model.gguf", storage="Q8_0", head_dim=64)


@pytest.mark.parametrize("kv", KINDS)
def test_same_bits_for_any_threads_and_steps(path: Path, kv: str) -> None:
    one, two = (nybble.load(path, threads=threads, kv=kv) for threads in (1, 2))
    ids = some_ids(one, 90)
    expected = bits(one.logits(ids))
    np.testing.assert_array_equal(bits(two.logits(ids)), expected)
    session = two.new_session()
    session.prefill(ids[:70])
    for place in range(70, 90):
        np.testing.assert_array_equal(bits(session.decode(ids[place])), expected[place])


def test_each_type_keeps_what_it_says(path: Path) -> None:
    """Logits differ from those of the default, as little as rounding to 8 and 7 bits makes them."""
    models = {kv: nybble.load(path, threads=1, kv=kv, accuracy="f32") for kv in KINDS}
    ids = some_ids(models["fp16"], 90)
    logits = {kv: model.logits(ids) for kv, model in models.items()}
    size = logits["fp16"].std()
    for kv, model in models.items():
        assert model.info.kv is KVType(kv)
        error = (logits[kv] - logits["fp16"]).std() / size
        assert error == 0 if kv == "fp16" else 1e-5 < error < 0.03, kv
    memory = {kv: model.info.memory.kv_cache for kv, model in models.items()}
    assert memory["fp32"] == 2 * memory["fp16"]
    assert memory["bf16"] == memory["fp16"] == memory["int8"] * (2 * 64) / (64 + 4)


@pytest.mark.parametrize("kv", KINDS)
def test_answers(tmp_path: Path, kv: str) -> None:
    model = nybble.load(scripted_gguf(tmp_path / "scripted.gguf", {5: 6, 6: 7, 7: 8}), threads=1, kv=kv)
    assert model.info.kv is KVType(kv)
    assert greedy(model, [5], 3) == [6, 7, 8]


def test_one_packed_model_serves_all_types(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NYBBLE_CACHE", str(tmp_path))
    monkeypatch.setattr(loading, "SMALLEST_STORED_BYTES", 0)
    monkeypatch.setattr(file_identity, "SETTLED_SECONDS", -1)
    nybble.load(path, threads=1)
    monkeypatch.setattr("nybble.graph.compile.compile_plan", lambda *arguments: pytest.fail("packed again"))
    monkeypatch.setattr(loading, "plan_file", lambda *arguments: pytest.fail("planned again"))
    for kv in KINDS:
        model = nybble.load(path, threads=1, kv=kv)
        assert model.info.kv is KVType(kv)
        assert np.isfinite(model.logits(some_ids(model, 3))).all()


def test_an_unknown_type_is_refused_before_anything_is_read() -> None:
    with pytest.raises(InvalidParameter, match="'q8' is not one of fp32, fp16, bf16, int8"):
        nybble.load("no/such/file.gguf", kv="q8")


def test_heads_too_large_for_codes_are_refused_before_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_gguf(tmp_path / "model.gguf", head_dim=528)
    assert nybble.load(path, threads=1, kv="bf16").info.kv is KVType.BF16
    monkeypatch.setattr("nybble.graph.compile.compile_plan", lambda *arguments: pytest.fail("packed"))
    with pytest.raises(
        UnsupportedFeature, match="at most 512 features; this model's have 528: choose fp32, fp16 or bf16"
    ):
        nybble.load(path, threads=1, kv="int8")


@pytest.mark.parametrize("kv", KINDS)
def test_memory_that_is_short_suggests_int8(path: Path, monkeypatch: pytest.MonkeyPatch, kv: str) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: MemoryAvailable(1_000_000, "a limit of this test"))
    with pytest.raises(InsufficientMemory) as caught:
        nybble.load(path, threads=1, kv=kv)
    assert ("--kv int8" in str(caught.value)) == (kv != "int8")


@pytest.mark.parametrize("kv", KINDS)
def test_values_beyond_fp16(tmp_path: Path, kv: str) -> None:
    path = spoilt_gguf(tmp_path / "large.gguf", "blk.0.attn_v.weight", 0, 1e7)
    model = nybble.load(path, threads=1, kv=kv)
    if kv == "fp16":
        with pytest.raises(NumericalError, match=r"or overflow fp16 in the KV cache \(bf16 has room\)"):
            model.logits([1, 2, 3])
    else:
        assert np.isfinite(model.logits([1, 2, 3])).all()
