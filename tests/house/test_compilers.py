"""Guards against: a RISC-V board whose build leaves its vectors idle, without a word."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

NEEDED = ("cmake", "make", "g++")
CLANGS = ("clang++", *(f"clang++-{version}" for version in range(18, 23)))

pytestmark = pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason=f"needs {', '.join(NEEDED)}")

without_clang = pytest.mark.skipif(any(map(shutil.which, CLANGS)), reason="this machine's clang would be taken")


def configure(tmp_path: Path, *options: str, gcc: int, others: dict[str, int] | None = None) -> str:
    """What CMake says on a machine that calls itself riscv64, whose ``c++`` and ``g++`` say that they are that GCC, and
    which has ``others`` by name, which say so too.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    script = programs / "uname"
    script.write_text('#!/bin/sh\ncase "$1" in -m) echo riscv64 ;; -s) echo Linux ;; *) echo 6.1 ;; esac\n')
    script.chmod(0o755)
    for name, version in {"c++": gcc, "g++": gcc, **(others or {})}.items():
        compiler = programs / name
        compiler.write_text(
            f'#!/bin/sh\n[ "$1" != -dumpversion ] || {{ echo {version}; exit; }}\n'
            f'exec {shutil.which("g++")} -U__GNUC__ -D__GNUC__={version} "$@"\n'
        )
        compiler.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), *options]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    return " ".join(outcome.stderr.split())


def test_older_compilers_are_refused(tmp_path: Path) -> None:
    said = configure(tmp_path, "-DCMAKE_CXX_COMPILER=g++", gcc=13)
    assert "need clang 18 or GCC 14 or newer, and" in said
    assert "g++ is GNU 13." in said


def test_older_clang_is_refused(tmp_path: Path) -> None:
    compiler = tmp_path / "clang++"
    macros = {"__clang__": 1, "__clang_major__": 17, "__clang_minor__": 0, "__clang_patchlevel__": 6}
    defined = " ".join(f"-D{name}={value}" for name, value in macros.items())
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} {defined} "$@"\n')
    compiler.chmod(0o755)
    said = configure(tmp_path, f"-DCMAKE_CXX_COMPILER={compiler}", gcc=14)
    assert "clang++ is Clang 17.0.6: install" in said


def test_gcc_14_is_taken(tmp_path: Path) -> None:
    """Whatever else is there of what a build needs."""
    assert "newer, and" not in configure(tmp_path, "-DCMAKE_CXX_COMPILER=g++", gcc=14)


def test_clang_is_taken_where_it_is(tmp_path: Path) -> None:
    """Under the name of clang stands this machine's compiler, which is refused by that name."""
    assert "programs/clang++-19 is GNU" in configure(tmp_path, gcc=13, others={"clang++-19": 13, "g++-14": 14})


@without_clang
@pytest.mark.parametrize(("gcc", "named", "is_named"), [(13, 12, True), (14, 12, False), (13, 14, False)])
def test_gcc_14_is_taken_by_its_name_where_another_is_too_old(
    tmp_path: Path, gcc: int, named: int, *, is_named: bool
) -> None:
    """A ``g++-14`` that says 12 is refused by that name, if it is taken."""
    said = configure(tmp_path, gcc=gcc, others={"g++-14": named})
    assert ("programs/g++-14 is GNU 12." in said) == is_named
    assert ("newer, and" in said) == is_named


@without_clang
def test_what_to_install_is_said(tmp_path: Path) -> None:
    said = configure(tmp_path, gcc=13)
    assert "programs/c++ is GNU 13." in said
    assert "clang-18 or g++-14" in said
