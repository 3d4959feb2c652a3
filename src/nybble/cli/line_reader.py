"""Lines from a person with an editor and a history, or from a pipe without either."""

from __future__ import annotations

import sys

_PROMPT = "> "


class LineReader:
    """Reads standard input. ``interactive`` is whether a person sits at a terminal."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        if self.interactive:
            import contextlib

            # input() edits lines and remembers them once this is imported; some builds of Python are without it.
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401

    def read(self) -> str | None:
        """The next line without its end; None when there are no more, or Ctrl-C or Ctrl-D says so."""
        try:
            if self.interactive:
                return input(_PROMPT)
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        except (EOFError, KeyboardInterrupt):
            if self.interactive:
                print()
            return None
