"""Guards against: mistakes that are told late, or not, and loading that decides by itself what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nybble
from nybble import _native
from nybble.engine import loading
from nybble.engine.loading import LONGEST_DEFAULT_CONTEXT
from nybble.errors import InvalidParameter, KernelUnavailable, ModelFileError, ModelNotFound
from nybble.machine.cpus import allowed_cpus

from .small_models import small_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_gguf(tmp_path_factory.mktemp("models") / "model.gguf", "qwen2", "Q4_1")


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        *(({"threads": value}, "threads is") for value in (0, -1, 1025, True, 1.5, "2")),
        *(({"context_length": value}, "context_length is") for value in (0, -1, True, 1.5, "2")),
        *(({"accuracy": value}, "is not one of int8, f32") for value in ("", "int4", "INT8")),
    ],
)
def test_mistakes_are_told_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], problem: str
) -> None:
    monkeypatch.setattr(loading, "resolve", lambda *arguments, **rest: pytest.fail("fetched"))
    with pytest.raises(InvalidParameter, match=problem):
        nybble.load("smollm2-135m", **parameters)


def test_an_instruction_set_that_is_not_there_is_refused_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "resolve", lambda *arguments, **rest: pytest.fail("fetched"))
    monkeypatch.setenv("NYBBLE_ISA", "avx1024")
    available = ", ".join(_native.available_isas())
    with pytest.raises(KernelUnavailable, match=f"NYBBLE_ISA=avx1024 is not available here; available: {available}"):
        nybble.load("smollm2-135m")


def test_a_context_beyond_the_models_is_refused(path: Path) -> None:
    with pytest.raises(InvalidParameter, match="context_length is 257; this model takes from 1 to 256 tokens"):
        nybble.load(path, context_length=257)


def test_defaults(path: Path, tmp_path: Path) -> None:
    """One thread for each CPU this process may use, the model's context, and no more than is sensible to reserve."""
    model = nybble.load(path)
    assert model.info.threads == allowed_cpus().count
    assert (model.context_length, model.info.memory.context_length) == (256, 256)
    assert model.info.isa == _native.available_isas()[0]
    assert model.info.accuracy.value == "int8"
    assert (model.info.path, model.info.architecture) == (path, "qwen2")
    assert model.default_sampling == nybble.SamplingOptions()
    assert 0 < model.info.load_seconds < 60
    long = nybble.load(small_gguf(tmp_path / "long.gguf", context_length=1 << 20))
    assert long.context_length == LONGEST_DEFAULT_CONTEXT
    assert nybble.load(long.info.path, context_length=1 << 14).context_length == 1 << 14


def test_what_was_asked_for_is_what_is_loaded(path: Path) -> None:
    model = nybble.load(str(path), threads=3, context_length=77, accuracy="f32")
    assert (model.info.threads, model.context_length, model.info.accuracy.value) == (3, 77, "f32")
    assert model.new_session().context_length == 77


def test_the_models_own_sampling_is_the_default(tmp_path: Path) -> None:
    extra = {"general.sampling.temp": 0.7, "general.sampling.top_k": 5}
    model = nybble.load(small_gguf(tmp_path / "warm.gguf", extra=extra), threads=1)
    assert model.default_sampling == nybble.SamplingOptions(temperature=0.7, top_k=5)
    stream = model.stream("hello", top_k=9, seed=3)
    assert stream.options.sampling == nybble.SamplingOptions(temperature=0.7, top_k=9, seed=3)
    answers = {model.generate("hello", max_tokens=20).ids for _ in range(5)}
    assert len(answers) > 1
    assert len({model.generate("hello", max_tokens=20, temperature=0.0).ids for _ in range(5)}) == 1


def test_progress_ends_where_it_should(path: Path) -> None:
    """Packing is told in bytes, growing, to the last."""
    seen: list[tuple[str, int, int | None]] = []
    nybble.load(path, threads=1, progress=lambda *report: seen.append(report))
    stages, done, totals = zip(*seen, strict=True)
    assert set(stages) == {f"packing the weights of {path.name}"}
    assert list(done) == sorted(done)
    assert {done[-1]} == set(totals)


def test_files_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        nybble.load(tmp_path / "none.gguf")
    other = tmp_path / "text.gguf"
    other.write_text("hello")
    with pytest.raises(nybble.NybbleError, match=r"text\.gguf"):
        nybble.load(other)


def test_a_scale_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    """Quantised weights are checked as they are packed; the message has tensor and row."""
    path = small_gguf(tmp_path / "model.gguf", storage="Q8_0")
    octets = bytearray(path.read_bytes())
    from nybble.formats.open import open_checkpoint

    tensor = open_checkpoint(path).tensors["blk.1.ffn_up.weight"]
    at = bytes(octets).index(tensor.rows[3].tobytes())
    octets[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(octets)
    with pytest.raises(ModelFileError, match=r"model\.gguf: blk\.1\.ffn_up\.weight row 3: .*not finite"):
        nybble.load(path, threads=1)


def test_a_loaded_model_does_not_need_its_file(tmp_path: Path) -> None:
    """Weights are packed into memory; a download that replaces the file disturbs nobody."""
    path = small_gguf(tmp_path / "model.gguf", storage="Q4_0")
    model = nybble.load(path, threads=1)
    expected = model.generate("hello", max_tokens=5).ids
    path.write_bytes(b"")
    path.unlink()
    assert model.generate("hello", max_tokens=5).ids == expected
