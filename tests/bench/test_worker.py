"""Worker processes: what they measure for real, and what becomes of those that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nybble.bench.cases import Case
from nybble.bench.job import Job, RandomModel, WeightFormat
from nybble.bench.processes import run_worker
from nybble.bench.row import parse_work
from nybble.errors import BenchmarkFailed, InvalidParameter
from tests.bench.workers import FAKE_LLAMA_CPP, job, python_with, script
from tests.models.tiny import tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", storage="Q4_0")


def ignore() -> None:
    pass


def test_jobs_survive_json(model: Path) -> None:
    for wanted in (job(model), job("", random=RandomModel("qwen2.5-0.5b", WeightFormat(4, 32, True)))):
        assert Job.from_json(wanted.to_json()) == wanted
        assert "\n" not in wanted.to_json()


def test_our_engine(model: Path) -> None:
    cases = Case(4, 0), Case(0, 3, 2, 2), Case(5, 2, 1), Case(600, 0)
    samples = []
    outcome = run_worker(job(model, *cases, repeats=3), None, lambda: samples.append(1))
    assert len(samples) == 3 * len(cases)
    assert set(outcome.measured) == set(range(len(cases)))
    for measured in outcome.measured.values():
        assert len(measured.seconds) == len(measured.busy) == 3
        assert all(0 < seconds < 10 for seconds in measured.seconds)
        for ceilings in measured.ceilings:
            assert 0 < ceilings["read_bandwidth"] < 1e13
            assert 1e7 < ceilings["int8_peak"] < 1e14 and 1e7 < ceilings["fp32_peak"] < 1e14
    assert outcome.facts["model_type"] == "llama Q4_0"
    assert 4.5 <= outcome.facts["bits_per_weight"] < 6  # the output head is padded to whole panels
    assert parse_work(outcome.facts["work"]).body.bytes > 0


def test_in_a_directory_of_traps(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against workers that import what happens to lie where the command was called."""
    (tmp_path / "numpy.py").write_text("raise RuntimeError('this is not numpy')")
    (tmp_path / "random.py").write_text("raise RuntimeError('this is not random')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join(part for part in sys.path if part))
    assert run_worker(job(model), None, ignore).measured


def test_another_python(model: Path, tmp_path: Path) -> None:
    """A Python that knows nothing of nybble gets it lent; what its libraries print disturbs nothing."""
    python = python_with(tmp_path / "peer", llama_cpp=FAKE_LLAMA_CPP)
    cases = Case(2500, 0), Case(0, 3, 2, 2), Case(5, 2, 1)
    outcome = run_worker(job(model, *cases, engine="llama-cpp"), python, ignore)
    assert set(outcome.measured) == {0, 1, 2}
    assert all(measured.ceilings == () for measured in outcome.measured.values())
    assert outcome.facts == {
        "version": "llama-cpp-python 0.0.1",
        "model_type": "toy 1B Q4_0",
        "model_bytes": 1234,
        "parameters": 567,
    }


def test_another_engine_that_cannot_load(tmp_path: Path) -> None:
    python = python_with(tmp_path / "peer", llama_cpp=FAKE_LLAMA_CPP)
    with pytest.raises(BenchmarkFailed, match=r"^llama-cpp: llama\.cpp cannot load model\.onnx: unknown magic$"):
        run_worker(job("model.onnx", engine="llama-cpp"), python, ignore)


def test_a_broken_model(tmp_path: Path) -> None:
    """Guards against tracebacks: the error of the engine comes through as it is."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(BenchmarkFailed, match=r"^\S*broken\.gguf: "):
        run_worker(job(path), None, ignore)


def test_wrong_parameters_stay_such(model: Path) -> None:
    with pytest.raises(InvalidParameter, match="accuracy"):
        run_worker(job(model, accuracy="f8"), None, ignore)


def test_too_little_memory(model: Path) -> None:
    with pytest.raises(BenchmarkFailed, match="available"):
        run_worker(job(model, Case(0, 1, depth=1 << 40)), None, ignore)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exit 3", "ended early with exit code 3: it said nothing"),
        ("exit 0", "ended early with exit code 0"),
        ("echo first >&2; echo the reason >&2; echo >&2; exit 1", "exit code 1: the reason"),
        ("kill -9 $$", "was killed by signal 9"),
        ("exec sleep 0", "ended early"),
    ],
)
def test_workers_that_die(model: Path, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BenchmarkFailed, match=message):
        run_worker(job(model), script(tmp_path / "python", text), ignore)


def test_no_such_python(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkFailed, match=r"cannot run .*missing: No such file"):
        run_worker(job(model), str(tmp_path / "missing"), ignore)


def test_an_interrupt_ends_the_worker(model: Path, tmp_path: Path) -> None:
    """Guards against workers that go on measuring when nobody waits for them any more."""
    pid = tmp_path / "pid"
    sample = json.dumps({"event": "sample", "case": 0})
    endless = script(tmp_path / "python", f"echo $$ > {pid}; echo '{sample}'; exec sleep 60")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_worker(job(model), endless, interrupt)
    assert subprocess.run(["kill", "-0", pid.read_text().strip()], capture_output=True).returncode != 0
