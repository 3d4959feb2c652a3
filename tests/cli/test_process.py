"""What only a process of its own shows: signals, closed pipes, full disks, poor encodings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nybble.cli.main import main
from tests.cli.outcome import start
from tests.models.tiny import tiny_gguf

PATIENCE_SECONDS = 30.0


def test_interrupt_keeps_what_was_said(endless: Path) -> None:
    """Guards against Ctrl-C that loses text, waits for the end of the answer, or shows a traceback."""
    with start("run", "-m", endless, "-n", 10**6, "--context", 10**6, "Hello") as process:
        assert process.stdout is not None
        first = process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        rest, remarks = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert (first + rest).removesuffix(b"\n").isalpha()
    (line,) = remarks.decode().splitlines()
    assert line.endswith("interrupted")


def test_interrupt_anywhere_else_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against tracebacks when Ctrl-C comes while a model is fetched or loaded."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nybble.engine.loading.load", interrupted)
    assert main(["run", "Hello"]) == 130
    assert capsys.readouterr() == ("", "")


def test_reader_that_had_enough(endless: Path) -> None:
    """Guards against a traceback, and against answering on for nobody, when a pipe is closed (``| head``)."""
    with start("run", "-m", endless, "-n", 10**6, "--context", 10**6, "Hello") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        remarks = process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 1
    assert remarks == b""


def test_reader_that_is_gone() -> None:
    """Guards against a traceback when output is written only at the end, to nobody (``| true``)."""
    reader, writer = os.pipe()
    os.close(reader)
    with start("models", stdout=writer, env={**os.environ, "PYTHONUNBUFFERED": ""}) as process:
        os.close(writer)
        _, remarks = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, remarks) == (1, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("models",), ("run", "-m", "MODEL", "-n", "3", "Hello")])
def test_full_disk(model: Path, arguments: tuple[str, ...], unbuffered: str) -> None:
    """Guards against a success that wrote nothing, and Python's complaint after ours."""
    arguments = tuple(str(model) if argument == "MODEL" else argument for argument in arguments)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full, start(*arguments, stdout=full, env=environment) as process:
        _, remarks = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert remarks.decode() == "nybble: error: standard input or output: No space left on device\n"


def test_poor_encoding(tmp_path: Path) -> None:
    """Guards against answers that end in a UnicodeEncodeError."""
    path = tiny_gguf(tmp_path / "tiny.gguf")  # says bytes at random: U+FFFD sooner or later
    with start(
        "run", "-m", path, "-n", 60, "Hello", env={**os.environ, "PYTHONIOENCODING": "ascii"}, stdin=subprocess.DEVNULL
    ) as process:
        output, remarks = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, remarks
    assert b"?" in output


@pytest.mark.parametrize("arguments", [("run",), ("chat", "-m", "MODEL"), ("models",)])
def test_closed_streams(model: Path, arguments: tuple[str, ...]) -> None:
    """Guards against tracebacks under supervisors that close the standard streams."""
    words = [str(model) if argument == "MODEL" else argument for argument in arguments]
    script = 'exec "$0" -m nybble "$@" <&- >&-'
    process = subprocess.run(["sh", "-c", script, sys.executable, *words], capture_output=True, text=True, check=False)
    assert "Traceback" not in process.stderr
    assert process.returncode == (2 if arguments == ("run",) else 0), process.stderr


def test_unreadable_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against tracebacks for what the operating system refuses."""
    assert main(["run", "-m", str(tmp_path), "Hello"]) == 1
    assert capsys.readouterr().err.startswith(f"nybble: error: {tmp_path}: ")
