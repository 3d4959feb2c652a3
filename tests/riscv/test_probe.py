"""Guards against: matrix instructions where there are none, or where they compute something else.

A pool's threads try them out in their places; with the emulator loaded, QEMU's CPU is a core that has them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Riscv

FIND = """
import json, os
from nybble import _native
cpu = min(os.sched_getaffinity(0))
pool = _native.ThreadPool([(cpu, False, True), (cpu, False, False), (cpu, False, True)])
print(json.dumps([[found.cpu - cpu, found.vector_bits, found.matrix_unit, found.problem] for found in pool.arrivals]))
"""


def arrivals(riscv: Riscv, vlen: int, **environment: str) -> list[list[Any]]:
    """Of three threads, the second of which is told not to try: the emulator's units are every core's."""
    outcome = riscv.python(vlen, "-c", FIND, environment=environment)
    assert outcome.returncode == 0, outcome.stderr
    return list(json.loads(outcome.stdout))


@pytest.mark.parametrize(("vlen", "unit"), [(256, "ime1"), (1024, "ime2")])
def test_emulated_matrix_units_are_found(riscv: Riscv, vlen: int, unit: str) -> None:
    found = arrivals(riscv, vlen, LD_PRELOAD=str(riscv.emulator))
    assert found == [[0, vlen, unit, ""]] * 3


@pytest.mark.parametrize("vlen", [128, 256, 512, 1024])
def test_illegal_instructions_are_survived(riscv: Riscv, vlen: int) -> None:
    assert arrivals(riscv, vlen) == [[0, vlen, "none", ""]] * 3


def test_a_matrix_unit_that_computes_otherwise_is_none(riscv: Riscv) -> None:
    """Its 16-bit floats are bf16: everything runs, and the scaled sums are not those of fp16."""
    found = arrivals(riscv, 1024, LD_PRELOAD=str(riscv.emulator), NYBBLE_IME_BF16="1")
    assert found == [[0, 1024, "none", ""]] * 3
