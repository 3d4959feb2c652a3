"""Guards against: vector kernels of RISC-V that differ from the portable ones at some VLEN. Real code under QEMU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import Riscv

STRICT = "rvv_ta_all_1s=true,rvv_ma_all_1s=true,rvv_vl_half_avl=true"
"""Agnostic lanes become ones, and vl may be half of what was asked, as the specification allows."""

VLENS = [int(vlen) for vlen in os.environ.get("NYBBLE_RISCV_VLEN", "128,256,512,1024").split(",")]
CASES = os.environ.get("NYBBLE_RISCV_CASES", "40")


def program_of(riscv: Riscv) -> Path:
    objects = sorted((riscv.build / "CMakeFiles" / "nybble_core.dir").rglob("*.o"))
    source = Path(__file__).with_name("kernels.cpp")
    return riscv.compile(source, *objects, f"-I{Path(__file__).parents[2] / 'native'}", "-DNYBBLE_RVV_KERNELS")


@pytest.mark.parametrize("vlen", VLENS)
def test_vector_kernels_give_the_bits_of_the_portable_ones(riscv: Riscv, vlen: int) -> None:
    outcome = riscv.run(vlen, program_of(riscv), CASES, cpu=STRICT)
    print(outcome.stdout)
    expected = [f"rvv{least}" for least in (512, 256, 128) if least <= vlen]
    assert outcome.stdout.splitlines()[0] == " ".join([*expected, "against portable"])
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize(
    ("isa", "profile", "words"),
    [
        ("ime1", "A60", {"smt.vmadot i8", "smt.vmadotsu i8"}),
        (
            "ime2",
            "A100",
            {"smt.vmadot i8", "smt.vmadotsu i8", "smt.vpack.vv"}
            | {f"smt.vmadot{signs} i4" for signs in ("", "u", "su", "us")},
        ),
    ],
    ids=["ime1", "ime2"],
)
def test_matrix_kernels_give_the_bits_of_the_portable_ones(
    riscv: Riscv, isa: str, profile: str, words: set[str]
) -> None:
    """With as many matrix instructions as their operands are large: nothing was computed in another way."""
    outcome = riscv.run_with_ime(profile, program_of(riscv), 4 * int(CASES), isa, NYBBLE_IME_COUNTS="1")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    expected = int(outcome.stdout.splitlines()[0].removesuffix(" matrix instructions"))
    counts = dict(line.split("\t") for line in outcome.stderr.splitlines())
    assert set(counts) == words
    assert sum(map(int, counts.values())) == expected
