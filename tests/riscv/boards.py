"""K1 and K3 boards made up of QEMU's CPUs, for tests that run in a riscv64 Python.

What /proc says is a board's, and threads are sent where they would be sent on it; each of its CPUs is one of QEMU's,
which are all alike. Whether a thread may try matrix instructions out is what makes cores differ: the emulator has them
on every CPU, so those of cores that have none are not tried.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nybble import _native
from nybble.machine.placement import Crew, Place, assemble
from tests.machine.made_up import Machine


@dataclass
class Board:
    """``gate`` is the file that threads write to before they go to gated cores; ``asked`` the places asked for."""

    machine: Machine
    gate: Path
    asked: list[int | Sequence[Place]] = field(default_factory=list)

    def crew(self, threads: int | None = None) -> Crew:
        """As :func:`assemble` does on such a board."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in self.machine.files().items():
                path = Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return assemble(threads, Path(root), start=self._start, affinity=self.machine.affinity)

    def _start(self, where: int | Sequence[Place], /) -> _native.ThreadPool:
        self.asked.append(where)
        if isinstance(where, int):
            return _native.ThreadPool(where)
        here = sorted(os.sched_getaffinity(0))
        places = [
            (here[cpu % len(here)], is_gated, tries and self.machine.cpus[cpu].matrix_unit != "none")
            for cpu, is_gated, tries in where
        ]
        return _native.ThreadPool(places, str(self.gate))
