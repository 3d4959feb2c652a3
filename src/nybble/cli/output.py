"""What all commands print with: safe on any terminal, plain in any pipe."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from ..hub.progress import Progress

# Model files are written by strangers: names and texts from them must not steer a terminal. Line feed and tab are fine.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"
_PATIENCE_SECONDS = 1.0


def prepare_streams() -> None:
    """Make the standard streams safe to use: there, and without encoding errors halfway through a text.

    Output replaces what its encoding lacks. Input keeps what is not text as lone surrogates, for the tokeniser to
    refuse in one line. A stream that is closed (``<&-``) reads and writes nothing.
    """
    for name, mode, errors in (
        ("stdin", "r", "surrogateescape"),
        ("stdout", "w", "replace"),
        ("stderr", "w", "replace"),
    ):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
        elif hasattr(stream, "reconfigure"):  # streams of tests and notebooks may have none
            stream.reconfigure(errors=errors)


def print_error(problem: object) -> None:
    """Print one line on standard error."""
    print(f"nybble: error: {one_line(str(problem))}", file=sys.stderr)


def one_line(text: str) -> str:
    """``text`` on one line, control characters spelled out."""
    return _CONTROL_CHARACTERS.sub(lambda found: f"\\x{ord(found[0]):02x}", " ".join(text.split("\n")))


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on standard output. In ASCII, so that no encoding of a terminal or pipe can damage it."""
    print(json.dumps(value, indent=2))


def note(text: str) -> None:
    """Print a remark on standard error, dimmed where it can be."""
    text = one_line(text)
    print(f"{_DIM}{text}{_NORMAL}" if takes_colour(sys.stderr) else text, file=sys.stderr)


def takes_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that shows colours, and nobody minds (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class AnswerWriter:
    """Writes an answer to standard output piece by piece, exactly as it is unless a terminal would obey it."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._line_is_open = False

    def write(self, piece: str) -> None:
        """Show ``piece`` at once."""
        if self._terminal:
            piece = _CONTROL_CHARACTERS.sub("", piece)
        if piece:
            self._line_is_open = not piece.endswith("\n")
            sys.stdout.write(piece)
            sys.stdout.flush()

    def end(self) -> None:
        """End the last line, if it was not."""
        if self._line_is_open:
            self.write("\n")


@contextlib.contextmanager
def work_progress() -> Iterator[Progress | None]:
    """Bars on standard error for work that takes a while; None where there is no terminal to draw them on."""
    if not sys.stderr.isatty():
        yield None
        return
    from ..hub.progress import TerminalProgress

    with TerminalProgress() as bars:
        yield _PatientProgress(bars)


class _PatientProgress:
    """Draws no bar for a stage that is over in a blink."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._stage = ""
        self._began = 0.0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began = stage, now
        if now - self._began >= _PATIENCE_SECONDS:
            self._bars(stage, done, total)


def megabytes(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e6:,.0f} MB" if count >= 10_000_000 else f"{count / 1e6:,.1f} MB"
