"""Counts what RISC-V's linear kernels and attention execute, by instruction, and compares with ``counts.json``.

Counts are exact and the same on every machine: QEMU logs each run of instructions that it enters, with the addresses
that were translated for it, and the program's listing says what lies there. An IME word counts once; what the emulator
does for it lies elsewhere and is not counted, as little as libc's ``memset``. Another compiler gives other counts:
those of GCC's code are kept in ``counts-gcc.json``, and no test looks at them.

``scripts/riscv-count`` builds and calls this: without an option it compares and fails where a kernel takes over 2 %
more than is written down, with ``--write`` it writes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COUNTS = HERE / "counts.json"
COUNTS_OF_GCC = HERE / "counts-gcc.json"
TOLERANCE = 0.02

VLEN = {"rvv128": 128, "rvv256": 256, "rvv512": 512, "ime1": 256, "ime2": 1024}
"""Where the kernels of an instruction set are counted; those not named here (portable) are not."""

SHAPES = {
    "decode": (1, 32, 4096),
    "staged decode": (1, 32, 4096),
    "prefill": (96, 32, 512),
    "prefill of 32": (96, 32, 32),
    "prefill of 64": (96, 32, 64),
    "attention of 1": (1, 128, 512),
    "attention of 32": (32, 128, 512),
}
"""Rows, channels, features. One panel: a kernel does the same for each, so 1 x 4096 x 11008 takes 344 times as much.
Staged: with the copy of the panel to tightly coupled memory, which only A100 cores (ime2) have. Attention: the last
rows of a context, features of each of two heads on one of an fp16 KV cache, positions of the context.
"""

MARKS = ("nybble_counting_begins", "nybble_counting_ends")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+): ((?:[0-9a-f]{4} )+|[0-9a-f]+)\s+(\S+)")
LABEL = re.compile(r"^([0-9a-f]+) <(\w+)>:$")
CLASSES = (
    ("matrix", re.compile(r"smt\.")),
    ("vector setting", re.compile(r"vset")),
    ("vector load", re.compile(r"vl")),
    ("vector store", re.compile(r"vs(?:e|se|uxei|oxei|(?:s|ux|ox)?seg)?\d|vsm\.v")),
    ("vector float", re.compile(r"vm?f")),
    ("vector integer", re.compile(r"v")),
    ("scalar", re.compile(r"")),
)


def class_of(mnemonic: str) -> str:
    """The first of :data:`CLASSES` that an instruction belongs to."""
    return next(name for name, pattern in CLASSES if pattern.match(mnemonic))


@dataclass(frozen=True)
class Toolchain:
    """What scripts/riscv-toolchain fetched, one of its compilers, and what that built of this repository."""

    folder: Path
    compiler: Path
    build: Path

    def compile(self, to: Path) -> Path:
        """The program that runs kernels, at fixed addresses, with room before it for what replaces IME words."""
        objects = sorted((self.build / "CMakeFiles" / "nybble_core.dir").rglob("*.o"))
        flags = ["-march=rv64gc", "-std=c++20", "-O2", "-no-pie", "-DNYBBLE_RVV_KERNELS", f"-I{ROOT / 'native'}"]
        flags.append("-Wl,--image-base=0x10000000")
        program = to / "run_kernels"
        subprocess.run([self.compiler, *flags, HERE / "run_kernels.cpp", *objects, "-o", program], check=True)
        return program

    def command(self, vlen: int, program: Path, *options: str) -> list[str]:
        """What runs ``program`` at ``vlen`` with the emulator of IME where that has a profile."""
        model = f"rv64,v=true,vlen={vlen},zfh=true,zvfh=true"
        preload = ["-E", f"LD_PRELOAD={self.build / 'libnybble_ime.so'}"] if vlen in (256, 1024) else []
        libraries = self.folder / "python"
        qemu = [self.folder / "qemu-riscv64", "-cpu", model, "-L", libraries, *preload, *options, program]
        return [str(part) for part in qemu]

    def listing(self, program: Path) -> tuple[dict[int, str], dict[str, int]]:
        """The mnemonic at each address, and the address of each function."""
        from nybble import _ime

        command = [self.folder / "llvm-objdump", "-d", "--mattr=+v,+zvfhmin,+zfhmin", program]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        mnemonics: dict[int, str] = {}
        functions: dict[str, int] = {}
        for line in text.splitlines():
            if found := INSTRUCTION.match(line):
                word, mnemonic = found[2], found[3]
                if mnemonic == "<unknown>":
                    mnemonic = _ime.name(int(word, 16)) or mnemonic
                mnemonics[int(found[1], 16)] = mnemonic
            elif found := LABEL.match(line):
                functions[found[2]] = int(found[1], 16)
        return mnemonics, functions


def executions(log: Iterable[str], begins: int, ends: int) -> Iterator[Counter[int]]:
    """How often each address was executed between one mark and the next, for each pair of marks in QEMU's log."""
    blocks: dict[int, tuple[int, ...]] = {}  # those last translated, by their first address
    translated: list[int] | None = None
    entered: Counter[tuple[int, ...]] = Counter()
    counting = False
    marks = {begins: True, ends: False}
    for line in log:
        if line.startswith("Trace "):
            first = int(line.split("/", 2)[1], 16)
            if first in marks:
                counting = marks[first]
                if counting:
                    entered.clear()
                else:
                    total: Counter[int] = Counter()
                    for addresses, times in entered.items():
                        for address in addresses:
                            total[address] += times
                    yield total
            elif counting:
                entered[blocks[first]] += 1
        elif line.startswith("IN:"):
            translated = []
        elif line.startswith("0x") and translated is not None:
            translated.append(int(line.split(":", 1)[0], 16))
        elif line.startswith("\n") and translated:
            blocks[translated[0]] = tuple(translated)
            translated = None
        elif line.startswith("Stopped execution"):
            raise RuntimeError("QEMU entered instructions that it did not execute: a signal came")


def inner_loop(times: Counter[int], mnemonics: dict[int, str]) -> dict[str, int] | None:
    """By class, one turn of the run of instructions, executed equally often, that holds most of the matrix words."""
    best: tuple[int, Counter[str]] | None = None
    run: Counter[str] = Counter()
    previous = -1
    addresses = sorted(mnemonics)
    for address in [*addresses, None]:
        now = times[address] if address is not None else -1
        if now != previous:
            weight = run["matrix"] * max(previous, 0)
            if weight and (best is None or weight > best[0]):
                best = (weight, run)
            run = Counter()
        if address is not None and now:
            run[class_of(mnemonics[address])] += 1
        previous = now
    return dict(sorted(best[1].items())) if best else None


def summary(times: Counter[int], mnemonics: dict[int, str]) -> dict[str, Any]:
    """Instructions by class, IME words by name, and of kernels with IME words a turn of the inner loop."""
    classes: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for address, count in times.items():
        mnemonic = mnemonics.get(address, "")  # jumps to shared libraries, where GNU's linker put them, are not listed
        classes[class_of(mnemonic)] += count
        if mnemonic.startswith("smt."):
            words[mnemonic] += count
    found: dict[str, Any] = {"instructions": sum(classes.values()), "classes": dict(sorted(classes.items()))}
    if words:
        found["words"] = dict(sorted(words.items()))
        found["inner loop"] = inner_loop(times, mnemonics)
    return found


@dataclass(frozen=True)
class Case:
    """A kernel, a shape, and how its weights are kept."""

    kernel: str
    weights: str
    shape: str
    block: int
    has_offsets: bool

    @property
    def name(self) -> str:
        """What it is called in ``counts.json``."""
        block = f" block {self.block}" if self.block > 1 else ""
        return f"{self.shape}{block}{' offsets' if self.has_offsets else ''}"

    @property
    def argument(self) -> str:
        """What the program takes."""
        numbers = (*SHAPES[self.shape], self.block, int(self.has_offsets), int(self.shape.startswith("staged")))
        return ":".join(map(str, (self.kernel, *numbers)))

    @property
    def macs(self) -> int:
        """Multiply-accumulates; of attention those of keys and of values, as if every row saw all positions."""
        rows, channels, features = SHAPES[self.shape]
        return rows * channels * features * (4 if self.kernel.startswith("attention") else 1)

    @property
    def weight_bytes(self) -> float:
        """Bytes of codes, scales and offsets (or of floats)."""
        _, channels, features = SHAPES[self.shape]
        bits = {"f16": 16.0, "bf16": 16.0, "f32": 32.0}.get(self.weights)
        if bits is None:
            bits = int(self.weights[1:]) + (32 if self.has_offsets else 16) / self.block
        return channels * features * bits / 8


def cases_of(kernel: str, weights: str, isa: str) -> list[Case]:
    """Blocks of 16 (where the layout knows them), 32 and 128, those of 32 with offsets too; floats have none. On IME1
    also a single block of 32 and of 64 for several rows: the inner loop's turns differ by what 32 k take, a block's end
    apart.
    """
    kinds = [(16, False), (32, False), (32, True), (128, False)] if weights[0] == "w" else [(1, False)]
    if "panel32k32" in kernel and weights[0] == "w":
        kinds.remove((16, False))
    shapes = ["decode", "staged decode", "prefill"] if isa == "ime2" else ["decode", "prefill"]
    cases = [Case(kernel, weights, shape, *kind) for shape in shapes for kind in kinds]
    single = [Case(kernel, weights, f"prefill of {block}", block, False) for block in (32, 64)]
    return [*cases, *single] if isa == "ime1" else cases


def attention_of(isa: str) -> list[Case]:
    """Attention, for one token and for some; IME1 has that of rvv256."""
    shapes = [] if isa == "ime1" else ["attention of 1", "attention of 32"]
    return [Case(f"attention_{isa}", "", shape, 1, False) for shape in shapes]


def count(toolchain: Toolchain, isas: set[str] | None = None) -> dict[str, dict[str, Any]]:
    """By kernel and case what it executes, for the kernels of ``isas`` (of all in :data:`VLEN` if None)."""
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = toolchain.compile(Path(folder))
        mnemonics, functions = toolchain.listing(program)
        begins, ends = (functions[mark] for mark in MARKS)
        listed = subprocess.run(toolchain.command(128, program), capture_output=True, text=True, check=True).stdout
        kernels = [line.split() for line in listed.splitlines()]
        first, last = min(mnemonics), max(mnemonics)
        for isa, vlen in VLEN.items():
            if isas is not None and isa not in isas:
                continue
            cases = [case for name, of, weights in kernels if of == isa for case in cases_of(name, weights, isa)]
            if not cases:
                continue
            cases += attention_of(isa)
            reader, writer = os.pipe()
            options = ["-d", "exec,nochain,in_asm", "-dfilter", f"{first:#x}..{last:#x}", "-D", f"/dev/fd/{writer}"]
            command = [*toolchain.command(vlen, program, *options), *(case.argument for case in cases)]
            process = subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.PIPE, text=True)
            os.close(writer)
            with open(reader) as log:  # noqa: PTH123
                for case, times in zip(cases, executions(log, begins, ends), strict=True):
                    found = summary(times, mnemonics)
                    found["per MAC"] = round(found["instructions"] / case.macs, 5)
                    if case.shape.endswith("decode"):
                        found["per weight byte"] = round(found["instructions"] / case.weight_bytes, 4)
                    results.setdefault(case.kernel, {})[case.name] = found
            _, errors = process.communicate()
            if process.returncode != 0:
                raise RuntimeError(f"{isa}: {errors}")
    return results


def regressions(found: dict[str, dict[str, Any]], stored: dict[str, dict[str, Any]]) -> list[str]:
    """What takes over :data:`TOLERANCE` more than is written down, and what is not."""
    problems = []
    for kernel, cases in found.items():
        for case, now in cases.items():
            before = stored.get(kernel, {}).get(case)
            if before is None:
                problems.append(f"{kernel}, {case}: not in {COUNTS.name}")
            elif now["instructions"] > before["instructions"] * (1 + TOLERANCE):
                problems.append(
                    f"{kernel}, {case}: {now['instructions']} instructions, {before['instructions']} before"
                )
    return problems


def brief(found: dict[str, Any]) -> dict[str, Any]:
    """The number of instructions alone."""
    return {"instructions": found["instructions"]}


def text_of(written: dict[str, Any]) -> str:
    """JSON with a line for each case, so that differences are read easily."""
    kernels = [
        f"  {json.dumps(kernel)}: {{\n"
        + ",\n".join(f"   {json.dumps(case)}: {json.dumps(found)}" for case, found in cases.items())
        + "\n  }"
        for kernel, cases in written["kernels"].items()
    ]
    head = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in written.items() if key != "kernels"]
    return "{\n" + ",\n".join([*head, ' "kernels": {\n' + ",\n".join(kernels) + "\n }"]) + "\n}\n"


def main() -> int:
    """1 where something got worse, else 0."""
    parser = argparse.ArgumentParser(description="Counts what RISC-V's kernels execute.")
    parser.add_argument("--write", action="store_true", help="write counts.json instead of comparing with it")
    parser.add_argument("--isa", action="append", choices=list(VLEN), help="only these kernels; may be repeated")
    options = parser.parse_args()
    toolchain = Toolchain(*(Path(os.environ[f"NYBBLE_RISCV_{name}"]) for name in ("TOOLCHAIN", "COMPILER", "BUILD")))
    is_gcc = toolchain.compiler.name == "g++"
    found = count(toolchain, set(options.isa) if options.isa else None)
    # Compared is always with clang's.
    to, command = COUNTS, "scripts/riscv-count --write"
    if is_gcc and options.write:
        to, command = COUNTS_OF_GCC, "scripts/riscv-count --compiler gcc --write"
        found = {kernel: {case: brief(now) for case, now in cases.items()} for kernel, cases in found.items()}
    stored = json.loads(to.read_text(encoding="utf-8")) if to.exists() else {"kernels": {}}
    if options.write:
        shapes = {
            name: dict(zip(("rows", "channels", "features"), shape, strict=True)) for name, shape in SHAPES.items()
        }
        kernels = found if options.isa is None else stored["kernels"] | found
        written = {"command": command, "shapes": shapes, "kernels": kernels}
        to.write_text(text_of(written), encoding="utf-8")
        return 0
    problems = regressions(found, stored["kernels"])
    print("\n".join(problems) or f"{sum(map(len, found.values()))} counts, none worse")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
