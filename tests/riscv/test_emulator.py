"""Guards against: an emulator that computes, traps, patches or counts wrongly. Real machine code under QEMU."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.ime import oracle

from .conftest import VLEN, Riscv

HERE = Path(__file__).parent
E8, E16, E32, E8_M2 = 0, 1 << 3, 2 << 3, 1
PATCHING = pytest.mark.parametrize("patching", ["0", "1"], ids=["trapping", "patching"])
PROFILES = pytest.mark.parametrize("profile", ["A60", "A100"])


@pytest.fixture(scope="module")
def words(riscv: Riscv) -> Path:
    return riscv.compile(HERE / "words.cpp")


def random_words(profile: str, count: int) -> list[tuple[int, int, int, oracle.Registers]]:
    """Words, where they lie, vtype, registers; more of those a core of the profile executes than of others."""
    random = np.random.default_rng(VLEN[profile])
    rows = [row for row in oracle.ENCODINGS if profile == "A100" or (row.family == "matrix" and row.bits == 8)]
    cases = []
    for turn in range(count):
        row = random.choice(oracle.ENCODINGS if turn % 8 == 0 else rows)
        word = row.fixed | int(random.integers(0, 1 << 32)) & ~row.mask
        if turn % 4 and row.family in ("matrix", "sparse", "scaled", "floats"):
            # No overlap: vd in v16..v31, the others below.
            word = (word | 1 << 11) & ~(1 << 24 | 1 << 19)
            if row.family != "sparse":
                word &= ~(1 << 7)
        vtype = int(random.choice([E8, E16, E32] if turn % 16 else [E8_M2, 3]))
        registers = random.integers(0, 256, (32, VLEN[profile] // 8), np.uint8)
        cases.append((word, int(random.choice([0, 2])), vtype, registers))
    return cases


@PROFILES
@PATCHING
def test_random_words(riscv: Riscv, words: Path, tmp_path: Path, profile: str, patching: str) -> None:
    """All registers after a word, run twice in the same place, against numpy; other registers are left alone."""
    cases = random_words(profile, 736)
    given, found = tmp_path / "given", tmp_path / "found"
    with given.open("wb") as file:
        for word, offset, vtype, registers in cases:
            file.write(struct.pack("<IIQ", word, offset, vtype) + registers.tobytes())
    outcome = riscv.run_with_ime(profile, words, "words", given, found, NYBBLE_IME_PATCH=patching)
    assert outcome.returncode == 0, outcome.stderr
    size = 32 * VLEN[profile] // 8
    records = found.read_bytes()
    assert len(records) == len(cases) * 2 * (8 + size)
    ran = set()
    for number, (word, _, vtype, registers) in enumerate(cases):
        expected, illegal = registers.copy(), 0
        try:
            oracle.run(profile, word, vtype, False, expected)
            ran.add(oracle.decode(word))
        except oracle.Illegal:
            illegal = 1
        for turn in range(2):
            start = (number * 2 + turn) * (8 + size)
            assert struct.unpack_from("<Q", records, start) == (illegal,), f"{word:#x} {vtype}"
            after = np.frombuffer(records, np.uint8, size, start + 8).reshape(registers.shape)
            assert np.array_equal(after, expected), f"{word:#x} {vtype}"
    assert len(ran) == (46 if profile == "A100" else 16)


@PROFILES
@PATCHING
def test_threads_meet_a_new_instruction_at_once(riscv: Riscv, words: Path, profile: str, patching: str) -> None:
    """Half of them at addresses that are no multiple of 4."""
    outcome = riscv.run_with_ime(profile, words, "threads", 16, NYBBLE_IME_PATCH=patching, NYBBLE_IME_COUNTS="1")
    assert (outcome.returncode, outcome.stderr) == (0, f"smt.vmadot i8\t{16 * 64}\n")


@PROFILES
def test_registers_in_the_signal_frame_of_linux(riscv: Riscv, words: Path, profile: str) -> None:
    outcome = riscv.run_with_ime(profile, words, "frame", NYBBLE_IME_PATCH="0")
    assert outcome.returncode == 0, outcome.stderr


@PROFILES
@PATCHING
def test_what_a_stack_holds_is_no_signal_frame(riscv: Riscv, words: Path, profile: str, patching: str) -> None:
    """Guards against looking behind the frame, at what the interrupted code keeps there, or behind its stack."""
    outcome = riscv.run_with_ime(profile, words, "stacks", NYBBLE_IME_PATCH=patching, NYBBLE_IME_COUNTS="1")
    assert (outcome.returncode, outcome.stderr) == (0, f"smt.vmadot i8\t{int(outcome.stdout)}\n")


@PROFILES
@PATCHING
def test_words_in_a_row(riscv: Riscv, words: Path, profile: str, patching: str) -> None:
    """One trap executes several of them: not more than there are, and none behind what is illegal."""
    assert riscv.run_with_ime(profile, words, "rows", NYBBLE_IME_PATCH=patching).returncode == 0


@PROFILES
def test_code_with_no_room_around_it(riscv: Riscv, words: Path, profile: str) -> None:
    """Guards against looking for room at each execution: a model took minutes a token where no library left a gap."""
    outcome = riscv.run_with_ime(profile, "-strace", words, "surrounded", 1000)
    assert outcome.returncode == 0
    assert 100 < outcome.stderr.count(" mmap(") < 1000


@pytest.mark.parametrize("vlen", [128, 256, 1024])
@PROFILES
def test_a_profile_needs_its_vlen(riscv: Riscv, words: Path, vlen: int, profile: str) -> None:
    outcome = riscv.run(vlen, words, "threads", 1, environment=riscv.ime(profile))
    if vlen == VLEN[profile]:
        assert outcome.returncode == 0
    else:
        assert f"VLEN is {vlen} and NYBBLE_IME_PROFILE is {profile}" in outcome.stderr
        assert outcome.returncode != 0


def test_what_stays_illegal_ends_the_process_and_says_why(riscv: Riscv, tmp_path: Path) -> None:
    source = tmp_path / "odd.cpp"
    code = "vsetvli t0, zero, e8, m1, ta, ma\\n.insn r 0x2b, 3, 0x71, x17, x0, x8"
    source.write_text(f'int main() {{ __asm__ volatile("{code}"); }}')
    outcome = riscv.run_with_ime("A60", riscv.compile(source))
    assert outcome.returncode != 0
    assert re.search(r"nybble_ime: illegal instruction at 0x[0-9a-f]+: vd must be even\n", outcome.stderr)


def test_the_example_of_the_documentation(riscv: Riscv, tmp_path: Path) -> None:
    page = (HERE.parents[1] / "docs" / "ime-emulator.md").read_text()
    source = tmp_path / "example.cpp"
    source.write_text(re.search(r"```c\n(.*?)```", page, re.S).group(1))  # type: ignore[union-attr]
    program = riscv.compile(source)
    outcome = riscv.run_with_ime("A60", program, NYBBLE_IME_COUNTS="1")
    assert outcome.returncode == 0
    assert outcome.stdout in page
    assert outcome.stderr in page
