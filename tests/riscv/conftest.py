"""Programs for riscv64, built and run under QEMU: scripts/riscv-test sets what these tests need."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VLEN = {"A60": 256, "A100": 1024}
STRICT = "rvv_ta_all_1s=true,rvv_ma_all_1s=true"
"""Lanes that are agnostic become ones."""


class Riscv:
    """A toolchain, a build of this repository, the Python package around it and QEMU."""

    def __init__(self, toolchain: Path, compiler: Path, build: Path, package: str, programs: Path):
        self.toolchain = toolchain
        self.compiler = compiler
        self.build = build
        self.package = package
        self.programs = programs

    @property
    def emulator(self) -> Path:
        return self.build / "libnybble_ime.so"

    def compile(self, source: Path, *more: object) -> Path:
        program = self.programs / source.stem
        if not program.exists():
            flags = ["-march=rv64gcv_zvfhmin", "-std=c++20", "-O2", "-ffp-contract=off"]
            command = [self.compiler, *flags, source, *map(str, more), "-o", program]
            subprocess.run(command, check=True)
        return program

    def qemu(
        self, vlen: int, *command: object, environment: Mapping[str, str] | None = None, cpu: str = STRICT
    ) -> list[str]:
        """The command that runs ``command`` on a CPU of that VLEN."""
        settings = [part for name, value in (environment or {}).items() for part in ("-E", f"{name}={value}")]
        model = f"rv64,v=true,vlen={vlen},zfh=true,zvfh=true,{cpu}"
        qemu = [self.toolchain / "qemu-riscv64", "-cpu", model, "-L", self.toolchain / "python"]
        return list(map(str, (*qemu, *settings, *command)))

    def run(
        self, vlen: int, *command: object, environment: Mapping[str, str] | None = None, cpu: str = STRICT
    ) -> subprocess.CompletedProcess[str]:
        arguments = self.qemu(vlen, *command, environment=environment, cpu=cpu)
        return subprocess.run(arguments, capture_output=True, text=True, timeout=900)

    def python(
        self, vlen: int, *command: object, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python for riscv64, which finds nybble, and the tests for their made-up machines."""
        settings = {
            "PYTHONHOME": "/usr",
            "PYTHONPATH": f"{self.package}:{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        interpreter = self.toolchain / "python" / "usr" / "bin" / "python3.13"
        return self.run(vlen, interpreter, *command, environment={**settings, **(environment or {})})

    def ime(self, profile: str) -> dict[str, str]:
        """The environment in which matrix instructions are emulated."""
        return {"LD_PRELOAD": str(self.emulator), "NYBBLE_IME_PROFILE": profile}

    def run_with_ime(self, profile: str, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(VLEN[profile], *command, environment={**self.ime(profile), **environment})


@pytest.fixture(scope="session")
def riscv(tmp_path_factory: pytest.TempPathFactory) -> Riscv:
    names = ("TOOLCHAIN", "COMPILER", "BUILD", "PACKAGE")
    toolchain, compiler, build, package = (os.environ.get(f"NYBBLE_RISCV_{name}") for name in names)
    if not toolchain or not compiler or not build or not package:
        pytest.skip("scripts/riscv-test runs these")
    return Riscv(Path(toolchain), Path(compiler), Path(build), package, tmp_path_factory.mktemp("riscv"))
