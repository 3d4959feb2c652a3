"""Tables of what RISC-V's kernels execute, as scripts/riscv-count counted it, for the parts of regenerate.py."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

COUNTS = Path(__file__).parents[1] / "benchmarks" / "riscv"


def counted(file: str = "counts.json") -> dict[str, Any]:
    """What the file of counts says."""
    found: dict[str, Any] = json.loads((COUNTS / file).read_text(encoding="utf-8"))
    return found


def per_matrix(classes: dict[str, int]) -> str:
    """Instructions for each matrix instruction."""
    return f"{sum(classes.values()) / classes['matrix']:.2f}"


def without_end(cases: dict[str, Any], block: int) -> str:
    """Of the inner loop: what 32 k more add to a single block. A group, the longest block, ends outside its loop."""
    if "prefill of 64 block 64" not in cases or block == 16:
        return ""
    if block == 128:
        return per_matrix(cases["prefill block 128"]["inner loop"])
    longer, shorter = (Counter(cases[f"prefill of {size} block {size}"]["inner loop"]) for size in (64, 32))
    longer.subtract(shorter)
    return per_matrix(longer)


def instruction_counts() -> str:
    """What RISC-V's kernels with int8 activations execute for 32 channels, from benchmarks/riscv/counts.json."""
    counts = counted()
    features = counts["shapes"]["decode"]["features"]
    lines = [
        "| kernel | block | decode: per MAC | per 32 bytes of weights | float per 16 channels and block "
        "| prefill: per MAC | float share of vector | matrix per vector load | inner loop per matrix "
        "| without a block's end |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kernel, cases in counts["kernels"].items():
        for block in (16, 32, 128):
            if "_int8_" not in kernel or f"decode block {block}" not in cases:
                continue
            decode, prefill = cases[f"decode block {block}"], cases[f"prefill block {block}"]
            classes = prefill["classes"]
            vectors = sum(count for name, count in classes.items() if name != "scalar")
            floats = decode["classes"]["vector float"] / (2 * features / block)
            matrix = "| | | "
            if "matrix" in classes:
                inner = prefill["inner loop"]
                loads = inner.get("vector load", 0)
                matrix = f"| {inner['matrix'] / loads:.2f} | {per_matrix(inner)} | {without_end(cases, block)} "
            lines.append(
                f"| {kernel.removeprefix('linear_')} | {block} | {decode['per MAC']:.3f} "
                f"| {32 * decode['per weight byte']:.1f} | {floats:.1f} | {prefill['per MAC']:.3f} "
                f"| {100 * classes['vector float'] / vectors:.0f} % {matrix}|"
            )
    rows, channels, width = counts["shapes"]["prefill"].values()
    about = (
        f"Instructions executed, counted under QEMU by `scripts/riscv-count`; no measure of time. Weights without "
        f"offsets; decode is 1 row x {channels} channels x {features} features, prefill {rows} x {channels} x {width}. "
        f"A turn of the inner loop is a block; on IME1, of blocks below 128, a group of 128 k and its end."
    )
    return "\n".join((*lines, "", about))


def attention_counts() -> str:
    """What RISC-V's attention executes, from benchmarks/riscv/counts.json."""
    counts = counted()
    few, many = (counts["shapes"][f"attention of {rows}"] for rows in (1, 32))
    lines = ["| attention | 1 token: per MAC | 32 tokens: per MAC |", "|---|--:|--:|"]
    for kernel, cases in counts["kernels"].items():
        if kernel.startswith("attention"):
            numbers = " | ".join(f"{found['per MAC']:.3f}" for found in cases.values())
            lines.append(f"| {kernel.removeprefix('attention_')} | {numbers} |")
    about = (
        f"Of the last {few['rows']} or {many['rows']} of {few['features']} positions, two heads of {few['channels']} "
        f"features on one of an fp16 KV cache."
    )
    return "\n".join((*lines, "", about))


def instruction_counts_of_gcc() -> str:
    """What GCC's code of the kernels of 4-bit weights executes beside clang's, from benchmarks/riscv/counts*.json."""
    of_clang, of_gcc = counted(), counted("counts-gcc.json")
    lines = [
        "| kernel | block | decode: clang | GCC | more | prefill: clang | GCC | more |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kernel, cases in of_gcc["kernels"].items():
        for block in (32, 128):
            if "_w4_int8_" not in kernel or f"decode block {block}" not in cases:
                continue
            cells = []
            for shape in ("decode", "prefill"):
                case = f"{shape} block {block}"
                clang, gcc = of_clang["kernels"][kernel][case]["instructions"], cases[case]["instructions"]
                cells.append(f"{clang} | {gcc} | {100 * gcc / clang - 100:+.0f} %")
            lines.append(f"| {kernel.removeprefix('linear_')} | {block} | {' | '.join(cells)} |")
    ratios = [
        now["instructions"] / of_clang["kernels"][kernel][case]["instructions"]
        for kernel, cases in of_gcc["kernels"].items()
        for case, now in cases.items()
    ]
    about = (
        f"Instructions executed, counted under QEMU by `{of_clang['command']}` (clang 19) and `{of_gcc['command']}` "
        f"(GCC 14); no measure of time. The shapes are those of the table below. All kernels, block sizes and types of "
        f"weights: {min(ratios):.2f} to {max(ratios):.2f} times as many with GCC."
    )
    return "\n".join((*lines, "", about))
