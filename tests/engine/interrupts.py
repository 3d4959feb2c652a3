"""KeyboardInterrupt at a chosen line: the signal may strike anywhere, so tests let it strike everywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any


def lines_run(work: Callable[[], object], files: Sequence[Path]) -> int:
    """How many lines of ``files`` ``work`` runs, each counted as often as it does."""
    lines = 0

    def count() -> None:
        nonlocal lines
        lines += 1

    with _at_each_line(count, files):
        work()
    return lines


@contextmanager
def raising_at_line(line: int, files: Sequence[Path]) -> Iterator[None]:
    """Raise KeyboardInterrupt at the ``line``-th line of ``files`` that is run, and catch it around the block."""
    left = line

    def strike() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise KeyboardInterrupt

    try:
        with _at_each_line(strike, files):
            yield
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError(f"fewer than {line + 1} lines were run")


@contextmanager
def _at_each_line(call: Callable[[], None], files: Sequence[Path]) -> Iterator[None]:
    names = {str(file) for file in files}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in names:
            return None
        if event == "line":
            call()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
