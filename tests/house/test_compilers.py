"""Guards against: a RISC-V board whose build leaves its vectors idle, without a word."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

NEEDED = ("cmake", "make", "g++")

pytestmark = pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason=f"needs {', '.join(NEEDED)}")


def configure(tmp_path: Path, *options: str, gcc: int, clang: str | None = None) -> str:
    """What CMake says on a machine that calls itself riscv64 and whose compilers say that they are that GCC."""
    programs = tmp_path / "programs"
    programs.mkdir()
    script = programs / "uname"
    script.write_text('#!/bin/sh\ncase "$1" in -m) echo riscv64 ;; -s) echo Linux ;; *) echo 6.1 ;; esac\n')
    compiler = programs / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -U__GNUC__ -D__GNUC__={gcc} "$@"\n')
    for program in (script, compiler):
        program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    if clang is not None:
        (programs / clang).symlink_to(compiler)
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), *options]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    return " ".join(outcome.stderr.split())


def test_older_compilers_are_refused(tmp_path: Path) -> None:
    said = configure(tmp_path, "-DCMAKE_CXX_COMPILER=g++", gcc=13)
    assert "need clang 18 or GCC 14 or newer, and" in said
    assert "g++ is GNU 13." in said


def test_gcc_14_is_taken(tmp_path: Path) -> None:
    """Whatever else is there of what a build needs."""
    assert "newer, and" not in configure(tmp_path, "-DCMAKE_CXX_COMPILER=g++", gcc=14)


def test_clang_is_taken_where_it_is(tmp_path: Path) -> None:
    """Under the name of clang stands this machine's compiler, which is refused by that name."""
    assert "programs/clang++-19 is GNU" in configure(tmp_path, gcc=13, clang="clang++-19")
