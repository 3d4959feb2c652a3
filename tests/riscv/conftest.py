"""Programs for riscv64, built and run under QEMU: scripts/riscv-test sets what these tests need."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

VLEN = {"A60": 256, "A100": 1024}


class Riscv:
    """A toolchain, a build of this repository and QEMU."""

    def __init__(self, toolchain: Path, build: Path, programs: Path):
        self.toolchain = toolchain
        self.build = build
        self.programs = programs

    @property
    def emulator(self) -> Path:
        return self.build / "libnybble_ime.so"

    def compile(self, source: Path) -> Path:
        program = self.programs / source.stem
        subprocess.run(
            [self.toolchain / "clang++", "-march=rv64gcv", "-std=c++20", "-O2", source, "-o", program], check=True
        )
        return program

    def command(self, vlen: int, environment: Mapping[str, str], *command: object) -> list[str]:
        settings = [part for name, value in environment.items() for part in ("-E", f"{name}={value}")]
        cpu = f"rv64,v=true,vlen={vlen},rvv_ta_all_1s=true,rvv_ma_all_1s=true"
        qemu = [self.toolchain / "qemu-riscv64", "-cpu", cpu, "-L", self.toolchain / "python"]
        return [str(part) for part in (*qemu, *settings, *command)]

    def run(
        self, vlen: int, *command: object, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        line = self.command(vlen, environment or {}, *command)
        return subprocess.run(line, capture_output=True, text=True, timeout=600)

    def run_with_ime(self, profile: str, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {"LD_PRELOAD": str(self.emulator), "NYBBLE_IME_PROFILE": profile, **environment}
        return self.run(VLEN[profile], *command, environment=settings)


@pytest.fixture(scope="session")
def riscv(tmp_path_factory: pytest.TempPathFactory) -> Riscv:
    toolchain, build = os.environ.get("NYBBLE_RISCV_TOOLCHAIN"), os.environ.get("NYBBLE_RISCV_BUILD")
    if not toolchain or not build:
        pytest.skip("scripts/riscv-test runs these")
    return Riscv(Path(toolchain), Path(build), tmp_path_factory.mktemp("riscv"))
