"""Programs for riscv64, built and run under QEMU: scripts/riscv-test sets what these tests need."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

VLEN = {"A60": 256, "A100": 1024}
STRICT = "rvv_ta_all_1s=true,rvv_ma_all_1s=true"
"""Lanes that are agnostic become ones."""


class Riscv:
    """A toolchain, a build of this repository and QEMU."""

    def __init__(self, toolchain: Path, build: Path, programs: Path):
        self.toolchain = toolchain
        self.build = build
        self.programs = programs

    @property
    def emulator(self) -> Path:
        return self.build / "libnybble_ime.so"

    def compile(self, source: Path, *more: object) -> Path:
        program = self.programs / source.stem
        if not program.exists():
            flags = ["-march=rv64gcv_zvfhmin", "-std=c++20", "-O2", "-ffp-contract=off"]
            command = [self.toolchain / "clang++", *flags, source, *map(str, more), "-o", program]
            subprocess.run(command, check=True)
        return program

    def run(
        self, vlen: int, *command: object, environment: Mapping[str, str] | None = None, cpu: str = STRICT
    ) -> subprocess.CompletedProcess[str]:
        settings = [part for name, value in (environment or {}).items() for part in ("-E", f"{name}={value}")]
        model = f"rv64,v=true,vlen={vlen},zfh=true,zvfh=true,{cpu}"
        qemu = [self.toolchain / "qemu-riscv64", "-cpu", model, "-L", self.toolchain / "python"]
        return subprocess.run([*map(str, (*qemu, *settings, *command))], capture_output=True, text=True, timeout=900)

    def run_with_ime(self, profile: str, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {"LD_PRELOAD": str(self.emulator), "NYBBLE_IME_PROFILE": profile, **environment}
        return self.run(VLEN[profile], *command, environment=settings)


@pytest.fixture(scope="session")
def riscv(tmp_path_factory: pytest.TempPathFactory) -> Riscv:
    toolchain, build = os.environ.get("NYBBLE_RISCV_TOOLCHAIN"), os.environ.get("NYBBLE_RISCV_BUILD")
    if not toolchain or not build:
        pytest.skip("scripts/riscv-test runs these")
    return Riscv(Path(toolchain), Path(build), tmp_path_factory.mktemp("riscv"))
