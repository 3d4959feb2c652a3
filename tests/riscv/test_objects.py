"""Guards against: instructions where they do not belong. A CPU without them would end the process there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from nybble import _ime

from .conftest import Riscv

VECTOR = re.compile(r"\t(v\w+(?:\.\w+)*)")


def instructions(riscv: Riscv, binary: Path) -> set[str]:
    """The mnemonics; "<unknown>" is a word that is in no standard extension."""
    listing = subprocess.run(
        [riscv.toolchain / "llvm-objdump", "-d", "--no-show-raw-insn", "--mattr=+v,+zvfhmin,+zfhmin", binary],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.split("\t")[1].strip() for line in listing.splitlines() if line.count("\t") > 1 or "<unknown>" in line}


def objects(riscv: Riscv) -> list[Path]:
    return sorted((riscv.build / "CMakeFiles" / "nybble_core.dir").rglob("*.o"))


def vendor_words(riscv: Riscv, binary: Path) -> set[str]:
    """The words of opcode custom-1 by their names, or as they are."""
    command = [riscv.toolchain / "llvm-objdump", "-d", "--mattr=+v,+zvfhmin,+zfhmin", binary]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = {int(word, 16) for word in re.findall(r"^ +[0-9a-f]+: ([0-9a-f]{8}) ", listing, re.MULTILINE)}
    return {_ime.name(word) or hex(word) for word in words if word & 0x7F == 0x2B}


def test_only_targets_of_vectors_have_vector_instructions(riscv: Riscv) -> None:
    """And what tries the matrix instructions out, which it does only where the core has vectors."""
    vector_objects = {
        path.name for path in objects(riscv) if any(VECTOR.match("\t" + name) for name in instructions(riscv, path))
    }
    expected = ("rvv128", "rvv256", "rvv512", "ime1", "ime2", "ime_probe")
    assert vector_objects == {f"{name}.cpp.o" for name in expected}


def test_targets_of_plain_vectors_have_no_other_extensions(riscv: Riscv) -> None:
    for path in sorted((riscv.build / "CMakeFiles" / "nybble_core.dir").rglob("rvv*.o")):
        found = instructions(riscv, path)
        assert "vwmaccsu.vv" in found, "the dot products are not what they should be"
        assert "<unknown>" not in found


def test_only_targets_of_matrix_instructions_have_words_of_a_vendor(riscv: Riscv) -> None:
    """Words of custom-1: the instructions that kernels are made of, and what tries them out."""
    words = {path.name: vendor_words(riscv, path) for path in objects(riscv)}
    assert {name for name, found in words.items() if found} == {"ime1.cpp.o", "ime2.cpp.o", "ime_probe.cpp.o"}
    assert words["ime1.cpp.o"] == {"smt.vmadot i8", "smt.vmadotsu i8"}
    fours = {f"smt.vmadot{signs} i4" for signs in ("", "u", "su", "us")}
    assert words["ime2.cpp.o"] == fours | {"smt.vmadot i8", "smt.vmadotsu i8", "smt.vpack.vv"}


def test_the_emulator_leaves_vectors_where_they_are(riscv: Riscv) -> None:
    """It runs while they hold the interrupted program's values: it may only store and load all of them."""
    found = {name for name in instructions(riscv, riscv.emulator) if VECTOR.match("\t" + name)}
    assert found == {"vs8r.v", "vl8r.v"}
    # Nor may it call functions of a C library that use vectors where the library is new enough.
    command = [riscv.toolchain / "llvm-objdump", "--dynamic-syms", riscv.emulator]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    imported = {line.split()[-1] for line in symbols.splitlines() if "*UND*" in line}
    assert "mmap" in imported
    assert not imported & {"memcpy", "memmove", "memset", "memcmp"}
