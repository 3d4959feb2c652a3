"""A command at a terminal, and a person who types and waits."""

from __future__ import annotations

import os
import pty
import re
import select

from tests.cli.outcome import start

PATIENCE_SECONDS = 30.0


class Terminal:
    """Runs a command on a terminal of its own. ``screen`` is what it printed since the last thing waited for."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        self.screen = ""
        self._master, slave = pty.openpty()
        variables = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment}
        # login_tty makes the terminal its controlling one, so that Ctrl-C becomes SIGINT.
        self.process = start(
            *arguments, stdin=slave, stdout=slave, stderr=slave, env=variables, preexec_fn=lambda: os.login_tty(slave)
        )
        os.close(slave)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until ``text`` is printed."""
        self.wait_for_match(re.escape(text))

    def wait_for_match(self, pattern: str) -> None:
        """Wait until something that ``pattern`` matches is printed."""
        while not (found := re.search(pattern, self.screen)):
            assert self._read(), f"it ended without {pattern!r}: {self.screen[-500:]!r}"
        self.screen = self.screen[found.end() :]

    def end(self) -> int:
        """Wait for the command to end, and return its exit code."""
        while self._read():
            pass
        os.close(self._master)
        return self.process.wait(PATIENCE_SECONDS)

    def _read(self) -> bool:
        """Read more; False at the end."""
        if not select.select([self._master], [], [], PATIENCE_SECONDS)[0]:
            self.process.kill()
            raise AssertionError(f"nothing more came after {self.screen[-500:]!r}")
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # how Linux says that nobody has the terminal open any more
            return False
        self.screen += data.decode(errors="replace")
        return bool(data)
