from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from nybble.cli.main import main
from tests.cli.outcome import Nybble, Outcome
from tests.cli.talkers import talker


@pytest.fixture(autouse=True)
def own_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees or changes the models of whoever runs it, or asks a network."""
    monkeypatch.setenv("NYBBLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("NYBBLE_ISA", raising=False)


@pytest.fixture
def nybble(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Nybble:
    """Runs a command in this process; ``stdin`` is piped to it."""

    def call(*arguments: object, stdin: str | bytes = b"") -> Outcome:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A talker with room for 256 tokens."""
    return talker(tmp_path_factory.mktemp("models") / "talker.gguf")


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A talker that talks until it is stopped."""
    return talker(tmp_path_factory.mktemp("models") / "endless.gguf", context_length=1 << 20)
