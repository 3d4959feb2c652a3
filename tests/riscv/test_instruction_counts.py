"""Guards against: RISC-V kernels that execute more than they did, and a count that is wrong."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Riscv

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "riscv" / "count_instructions.py"
spec = importlib.util.spec_from_file_location("count_instructions", SCRIPT)
assert spec is not None and spec.loader is not None
counting = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = counting
spec.loader.exec_module(counting)


def test_no_kernel_executes_more_than_is_written_down(riscv: Riscv) -> None:
    kernels = os.environ.get("NYBBLE_RISCV_KERNELS", "rvv,ime1,ime2").split(",")
    isas = [isa for isa in counting.VLEN if any(isa.startswith(kernel) for kernel in kernels)]
    command = [sys.executable, str(SCRIPT), *(part for isa in isas for part in ("--isa", isa))]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize(
    ("expected", "mnemonics"),
    [
        ("vector load", "vle8.v vl4re8.v vluxei16.v vlse32.v vlm.v vlseg4e8.v"),
        ("vector store", "vse32.v vs8r.v vssseg2e8.v vsuxei8.v vsse8.v vsm.v"),
        ("vector setting", "vsetvli vsetivli"),
        ("vector float", "vfmacc.vv vmfeq.vv vfwcvt.f.f.v"),
        ("vector integer", "vsext.vf2 vsrl.vi vssrl.vi vsub.vv vslide1down.vx vsmul.vv vmv1r.v"),
        ("matrix", "smt.vmadot smt.vmadotsu.hp"),
        ("scalar", "addi fmadd.s"),
    ],
)
def test_classes(expected: str, mnemonics: str) -> None:
    assert {counting.class_of(mnemonic) for mnemonic in mnemonics.split()} == {expected}


def block(*addresses: int) -> list[str]:
    lines = [f"0x{address:08x}:  0000              nop\n" for address in addresses]
    return ["-" * 16 + "\n", "IN: f\n", *lines, "\n"]


def entered(address: int) -> str:
    return f"Trace 0: 0x7f9c9b8987c0 [00000000/{address:016x}/0202c078/00000200] f\n"


def test_only_what_lies_between_marks_is_counted() -> None:
    begins, ends, loop = 0x1000, 0x1010, 0x2000
    log = [*block(loop, loop + 4), entered(loop), *block(begins), entered(begins), entered(loop), entered(loop)]
    log += [*block(loop), entered(loop), *block(ends), entered(ends), entered(loop), entered(begins), entered(ends)]
    first, second = counting.executions(log, begins, ends)
    assert first == {loop: 3, loop + 4: 2}, "what was translated anew is shorter"
    assert second == {}


def test_a_turn_of_the_inner_loop() -> None:
    names = {0: "addi", 4: "vle8.v", 8: "smt.vmadot i8", 12: "smt.vmadot i8", 16: "bne", 20: "ret", 24: "smt.vmadot i8"}
    times = counting.Counter({0: 1, 4: 9, 8: 9, 12: 9, 16: 9, 20: 1, 24: 1})
    assert counting.inner_loop(times, names) == {"matrix": 2, "scalar": 1, "vector load": 1}


def test_regressions() -> None:
    stored = {"kernel": {"decode": {"instructions": 1000}}}
    assert counting.regressions({"kernel": {"decode": {"instructions": 1020}}}, stored) == []
    assert len(counting.regressions({"kernel": {"decode": {"instructions": 1021}}}, stored)) == 1
    assert len(counting.regressions({"kernel": {"prefill": {"instructions": 1}}}, stored)) == 1
