"""What all commands print with."""

from __future__ import annotations

import io
import json
import sys

import pytest

from nybble.cli import output
from nybble.cli.table import columns, plain_lines

HOSTILE = "a\x1b[2Jb\x07\x9bc\r\nd\te"


class Screen(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def test_table_is_aligned() -> None:
    lines = plain_lines(columns("NAME", "SIZE>", "FILE"), [("a", "10 MB", "x"), ("longer", "9 MB", "")])
    assert lines == ["NAME     SIZE  FILE", "a       10 MB  x", "longer   9 MB"]


def test_answers_cannot_steer_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against escape sequences a model says: a terminal must not obey them."""
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    output.AnswerWriter().write(HOSTILE)
    assert screen.getvalue() == "a[2Jbc\nd\te"


def test_answers_reach_a_pipe_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against changing what other programs read."""
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    output.AnswerWriter().write(HOSTILE)
    assert pipe.getvalue() == HOSTILE


@pytest.mark.parametrize(
    ("pieces", "shown"), [((), ""), (("a",), "a\n"), (("a\n",), "a\n"), (("a\n", "b"), "a\nb\n"), (("a", ""), "a\n")]
)
def test_last_line_is_ended_once(monkeypatch: pytest.MonkeyPatch, pieces: tuple[str, ...], shown: str) -> None:
    """Guards against remarks that continue the answer's last line, and against empty lines."""
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    writer = output.AnswerWriter()
    for piece in pieces:
        writer.write(piece)
    writer.end()
    assert pipe.getvalue() == shown


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards against names in model files that write lines, or escape sequences, of their own."""
    output.print_error("bad\nnybble: fine\x1b[2J")
    assert capsys.readouterr().err == "nybble: error: bad nybble: fine\\x1b[2J\n"


def test_json_survives_any_encoding(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"text": "Grüße \ud83d\x1b"})
    text = capsys.readouterr().out
    assert text.isascii()
    assert json.loads(text) == {"text": "Grüße \ud83d\x1b"}


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        (Screen(), {"TERM": "xterm"}, True),
        (Screen(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Screen(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colours(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, environment: dict[str, str], expected: bool
) -> None:
    """Guards against colours in pipes and files, and for people who said no."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert output.takes_colour(stream) == expected


def test_bars_for_long_work_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against bars that flash up for what is over in a blink, and for those that never appear."""
    times = iter((0.0, 0.9, 1.0, 1.9, 2.0))
    drawn: list[tuple[str, int, int | None]] = []
    monkeypatch.setattr(output.time, "monotonic", lambda: next(times))
    progress = output._PatientProgress(lambda stage, done, total: drawn.append((stage, done, total)))
    for stage, done in (("quick", 0), ("quick", 9), ("slow", 0), ("slow", 1), ("slow", 2)):
        progress(stage, done, 9)
    assert drawn == [("slow", 2, 9)]
