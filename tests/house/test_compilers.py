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


def configure(tmp_path: Path, *options: str, clang: str | None = None) -> str:
    """What CMake says on a machine that calls itself riscv64 and whose compilers are this one's ``g++``."""
    programs = tmp_path / "programs"
    programs.mkdir()
    script = programs / "uname"
    script.write_text('#!/bin/sh\ncase "$1" in -m) echo riscv64 ;; -s) echo Linux ;; *) echo 6.1 ;; esac\n')
    script.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    if clang is not None:
        (programs / clang).symlink_to(str(shutil.which("g++")))
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), *options]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert outcome.returncode != 0
    return " ".join(outcome.stderr.split())


def test_other_compilers_than_clang_are_refused(tmp_path: Path) -> None:
    said = configure(tmp_path, "-DCMAKE_CXX_COMPILER=g++")
    assert "need clang 18 or newer, and" in said
    assert "g++ is GNU" in said


def test_clang_is_taken_where_it_is(tmp_path: Path) -> None:
    """Under the name of clang stands this machine's compiler, which is refused by that name."""
    assert "programs/clang++-19 is GNU" in configure(tmp_path, clang="clang++-19")
