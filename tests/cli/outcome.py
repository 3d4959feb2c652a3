"""What a command did, and the type of the fixture that runs one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """Exit code, standard output, standard error."""

    code: int
    output: str
    remarks: str

    @property
    def error(self) -> str:
        """The one line that a command says which failed."""
        (line,) = self.remarks.splitlines()
        assert line.startswith("nybble: error: ")
        return line.removeprefix("nybble: error: ")


Nybble = Callable[..., Outcome]


def start(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """Begin a command in a process of its own, with pipes where ``options`` name nothing else."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-m", "nybble", *map(str, arguments)], **{**pipes, **options})
