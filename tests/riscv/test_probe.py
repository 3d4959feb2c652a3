"""Guards against: matrix instructions where there are none, or where they compute something else; boards of SpacemiT on
which threads go elsewhere than they should.

A pool's threads try the instructions out in their places; with the emulator loaded, QEMU's CPU is a core that has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from .conftest import VLEN, Riscv

FIND = """
import json, os
from nybble import _native
cpu = min(os.sched_getaffinity(0))
pool = _native.ThreadPool([(cpu, False, True), (cpu, False, False), (cpu, False, True)])
print(json.dumps([[found.cpu - cpu, found.vector_bits, found.matrix_unit, found.problem] for found in pool.arrivals]))
"""

PLACE = """
import json, sys
from pathlib import Path
from tests.machine import made_up
from tests.riscv.boards import Board
board = Board(getattr(made_up, sys.argv[1])(), Path(sys.argv[2]))
crew = board.crew()
members = [[member.cpu, member.vector_bits, member.matrix_unit, member.isas[0]] for member in crew.members]
print(json.dumps([board.asked, members, crew.notes]))
"""

MIX = """
import json, os, numpy
from nybble import _native
cpu, k, layout = min(os.sched_getaffinity(0)), 128, "panel32k32"
outcomes = []
for tries in ([True, True], [True, False], [False, True]):
    pool = _native.ThreadPool([(cpu, False, try_it) for try_it in tries])
    memory = _native.WeightMemory(_native.packed_bytes("Q4_0", 32, k, layout=layout))
    rows = numpy.zeros((32, k // 32 * 18), numpy.uint8)
    matrix, _ = _native.pack(memory, 0, [("Q4_0", [rows])], k, pool, layout=layout)
    program = _native.Program(pool, [found.isas[0] for found in pool.arrivals], 32, 0, 1, 2, [0.0])
    given = program.view(program.slot(k, False, 32, layout), 0, k)
    output = program.view(program.slot(32, False, 0), 0, 32)
    try:
        program.linear("linear", given, matrix, "linear_w4_int8_panel32k32_ime2", output, None, None)
        outcomes.append("")
    except ValueError as error:
        outcomes.append(str(error))
print(json.dumps(outcomes))
"""


PEAKS = """
import ctypes, json, os
from nybble import _native
cpu = min(os.sched_getaffinity(0))
pool = _native.ThreadPool([(cpu, False, True), (cpu, False, False)])
emulator = ctypes.CDLL(None)
emulator.nybble_ime_reset()
peak = _native.measure_int8_peak(pool, [found.isas[0] for found in pool.arrivals], 0.01)
emulator.nybble_ime_count.restype = ctypes.c_ulonglong
multiplied = emulator.nybble_ime_count(None)
print(json.dumps([peak, multiplied]))
"""


def guest(riscv: Riscv, vlen: int, script: str, *arguments: object, **environment: str) -> Any:
    """What a script prints, which runs in a riscv64 Python."""
    outcome = riscv.python(vlen, "-c", script, *arguments, environment=environment)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.mark.parametrize(("vlen", "unit", "profile"), [(256, "ime1", "A60"), (1024, "ime2", "A100")])
def test_emulated_matrix_units_are_found(riscv: Riscv, vlen: int, unit: str, profile: str) -> None:
    """By those of three threads that try; the second is told not to."""
    found = guest(riscv, vlen, FIND, **riscv.ime(profile))
    assert found == [[0, vlen, unit, ""], [0, vlen, "none", ""], [0, vlen, unit, ""]]


@pytest.mark.parametrize("vlen", [128, 256, 512, 1024])
def test_illegal_instructions_are_survived(riscv: Riscv, vlen: int) -> None:
    assert guest(riscv, vlen, FIND) == [[0, vlen, "none", ""]] * 3


def test_a_matrix_unit_that_computes_otherwise_is_none(riscv: Riscv) -> None:
    """Its 16-bit floats are bf16: everything runs, and the scaled sums are not those of fp16."""
    found = guest(riscv, 1024, FIND, **riscv.ime("A100"), NYBBLE_IME_BF16="1")
    assert found == [[0, 1024, "none", ""]] * 3


def test_a_k1_has_matrix_units_in_its_first_cluster(riscv: Riscv, tmp_path: Path) -> None:
    asked, members, notes = guest(riscv, 256, PLACE, "k1", tmp_path / "none", **riscv.ime("A60"))
    assert asked == [[[cpu, False, True] for cpu in range(8)]]
    assert members == [[cpu, 256, *(("ime1", "ime1") if cpu < 4 else ("none", "rvv256"))] for cpu in range(8)]
    assert notes == []


def test_threads_ask_a_k3_for_its_wide_cores(riscv: Riscv, tmp_path: Path) -> None:
    """A core of each pair first; each thread asked, moved, saw VLEN 1024 and tried the instructions."""
    gate = tmp_path / "set_ai_thread"
    gate.touch()
    asked, members, notes = guest(riscv, 1024, PLACE, "k3", gate, **riscv.ime("A100"))
    order = [8, 10, 12, 14, 9, 11, 13, 15]
    assert asked == [[[cpu, True, True] for cpu in order]]
    assert members == [[cpu, 1024, "ime2", "ime2"] for cpu in order]
    assert notes == []
    assert gate.read_text() == "0"


@pytest.mark.parametrize(
    ("gate_is_there", "problem", "emulated"),
    [(False, "No such file or directory", True), (True, "CPU 8 has VLEN 256, expected 1024", False)],
)
def test_threads_fall_back_to_general_cores_of_a_k3(
    riscv: Riscv, tmp_path: Path, gate_is_there: bool, problem: str, emulated: bool
) -> None:
    """Where nobody may ask, and where asking helps nothing: QEMU's CPU is an X100."""
    gate = tmp_path / "set_ai_thread"
    if gate_is_there:
        gate.touch()
    environment: Mapping[str, str] = riscv.ime("A60") if emulated else {}
    asked, members, notes = guest(riscv, 256, PLACE, "k3", gate, **environment)
    assert [[cpu for cpu, _, _ in places] for places in asked] == [[8, 10, 12, 14, 9, 11, 13, 15], [*range(8)]]
    unit = "ime1" if emulated else "none"
    assert members == [[cpu, 256, unit, "ime1" if emulated else "rvv256"] for cpu in range(8)]
    (note,) = notes
    assert note.startswith("not on A100 cores: ")
    assert problem in note


def test_a_kernel_that_not_every_thread_can_run_or_replace_is_refused(riscv: Riscv) -> None:
    """As it would be on threads of which some are on X100 and some on A100 cores."""
    refusal = "a thread's CPU does not run this kernel"
    assert guest(riscv, 1024, MIX, **riscv.ime("A100")) == ["", refusal, refusal]


@pytest.mark.parametrize("profile", ["A60", "A100"])
def test_peaks_are_of_matrix_instructions_where_a_thread_has_them(riscv: Riscv, profile: str) -> None:
    """Beside a thread that has none."""
    peak, multiplied = guest(riscv, VLEN[profile], PEAKS, **riscv.ime(profile))
    assert peak > 0
    assert multiplied > 100
