"""Guards against: an emulator and a test of it that misread a program's state alike.

Here nothing of the emulator runs. QEMU stops the program at each IME word; its registers are read from outside, numpy
computes what the word does, and the program goes on behind it. What the program then finds must be what it finds with
the emulator loaded: on random words, legal or not, and in a loop that adds up.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.ime import oracle

from . import gdb
from .conftest import VLEN, Riscv
from .test_emulator import HERE, random_words


def run_from_outside(riscv: Riscv, profile: str, socket: Path, *command: object) -> tuple[int, int]:
    """The exit code and how many words were executed."""

    def execute(word: int, vtype: int, registers: oracle.Registers) -> None:
        oracle.run(profile, word, vtype, False, registers)

    return gdb.run(riscv.qemu(VLEN[profile], *command), socket, execute)


@pytest.mark.parametrize("profile", ["A60", "A100"])
def test_random_words_run_as_with_the_emulator(riscv: Riscv, tmp_path: Path, profile: str) -> None:
    program = riscv.compile(HERE / "words.cpp")
    given, emulated, outside = (tmp_path / name for name in ("given", "emulated", "outside"))
    with given.open("wb") as file:
        for word, offset, vtype, registers in random_words(profile, 96):
            file.write(struct.pack("<IIQ", word, offset, vtype) + registers.tobytes())
    outcome = riscv.run_with_ime(profile, program, "words", given, emulated)
    assert outcome.returncode == 0, outcome.stderr
    code, executed = run_from_outside(riscv, profile, tmp_path / "socket", program, "words", given, outside)
    assert code == 0
    assert executed > 120, "most words are legal, and each runs twice"
    assert outside.read_bytes() == emulated.read_bytes()


@pytest.mark.parametrize("profile", ["A60", "A100"])
def test_a_program_adds_up(riscv: Riscv, tmp_path: Path, profile: str) -> None:
    program = riscv.compile(HERE / "words.cpp")
    assert run_from_outside(riscv, profile, tmp_path / "socket", program, "threads", 1) == (0, 64)
