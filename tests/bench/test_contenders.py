"""Other engines: found, missing, or misspelt."""

from __future__ import annotations

from pathlib import Path

import pytest

from nybble.bench.benchmark import Contender
from nybble.bench.contenders import find_contenders, parse_peers, parse_places
from nybble.bench.peers import PEERS
from nybble.errors import InvalidParameter
from tests.bench.workers import FAKE_LLAMA_CPP, python_with


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.touch()
    return path


def test_names() -> None:
    assert parse_peers("llama-cpp, mnn,llama-cpp") == ("llama-cpp", "mnn")
    with pytest.raises(InvalidParameter, match="no engine 'llama' to compare with; there are llama-cpp, "):
        parse_peers("mnn,llama")


def test_places() -> None:
    assert parse_places(["mnn=/a=b", "mnn=c"], "--peer-model", ["mnn"]) == {"mnn": "c"}
    for text in ("mnn", "mnn=", "=x"):
        with pytest.raises(InvalidParameter, match="--peer-model"):
            parse_places([text], "--peer-model", ["mnn"])
    with pytest.raises(InvalidParameter, match="not one of --against"):
        parse_places(["mnn=x"], "--peer-python", ["llama-cpp"])


def test_found_in_another_python(gguf: Path, tmp_path: Path) -> None:
    python = python_with(tmp_path / "peer", llama_cpp=FAKE_LLAMA_CPP)
    found, missing = find_contenders(["llama-cpp"], {"llama-cpp": python}, {}, gguf)
    assert found == [Contender("llama-cpp", str(gguf), "model", python)] and missing == []


def test_missing_engines_are_named(gguf: Path, tmp_path: Path) -> None:
    """Guards against a missing engine that is left out in silence, or not said how to install."""
    python = python_with(tmp_path / "peer")
    models = dict.fromkeys(PEERS, str(gguf))
    found, missing = find_contenders(list(PEERS), dict.fromkeys(PEERS, python), models, gguf)
    assert found == [] and len(missing) == len(PEERS)
    for (name, peer), line in zip(PEERS.items(), missing, strict=True):
        assert line.startswith(f"{name} is not installed in {python}: {peer.install}")
        assert "--peer-python" in line


def test_no_such_python(gguf: Path, tmp_path: Path) -> None:
    found, missing = find_contenders(["llama-cpp"], {"llama-cpp": str(tmp_path / "none")}, {}, gguf)
    assert found == [] and "not installed" in missing[0]


def test_models_of_their_own(gguf: Path) -> None:
    found, missing = find_contenders(["mnn", "onnxruntime-genai"], {}, {}, gguf)
    assert found == []
    assert "--peer-model mnn=PATH of the config.json" in missing[0]
    assert "--peer-model onnxruntime-genai=PATH of a folder" in missing[1]


def test_no_gguf_for_a_random_model(tmp_path: Path) -> None:
    found, missing = find_contenders(["llama-cpp"], {}, {}, None)
    assert found == [] and "--peer-model llama-cpp=PATH of a GGUF file" in missing[0]


def test_what_models_are_called(gguf: Path, tmp_path: Path) -> None:
    python = python_with(tmp_path / "peer", llama_cpp="", MNN="")
    folder = tmp_path / "smollm2-4bit"
    folder.mkdir()
    (folder / "config.json").touch()
    for path, name in ((gguf, "model"), (folder, "smollm2-4bit"), (folder / "config.json", "smollm2-4bit")):
        found, _ = find_contenders(["mnn"], {"mnn": python}, {"mnn": str(path)}, None)
        assert [contender.name for contender in found] == [name]


def test_a_model_that_is_not_there(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="no such file"):
        find_contenders(["mnn"], {}, {"mnn": str(tmp_path / "none")}, gguf)
