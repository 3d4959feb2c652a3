"""Rewrites the parts of the docs that show what nybble printed; `--check` only says whether they are up to date.

A part stands between `<!-- begin: NAME -->` and `<!-- end -->` lines in a Markdown file of this folder or the README.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PART = re.compile(r"(<!-- begin: (?P<name>[^\n]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def kernel_table() -> str:
    """Every linear kernel of the registry, one row for each kind, instruction sets in the order they are preferred."""
    from nybble import _native

    kinds: dict[tuple[str, str, str], list[str]] = {}
    for _, isa, *kind in _native.linear_kernels():
        weights, activations, layout = kind
        kinds.setdefault((weights, activations, layout), []).append(isa)
    rows = [f"| {' | '.join(kind)} | {', '.join(isas)} |" for kind, isas in kinds.items()]
    return "\n".join(("| weights | activations | layout | instruction sets |", "|---|---|---|---|", *rows))


def commands() -> list[list[str]]:
    """The words of every command, nybble itself first."""
    import typer

    from nybble.cli.app import app

    def below(words: list[str], command: Any) -> list[list[str]]:
        inner = getattr(command, "commands", {})
        return [words, *(found for name in inner for found in below([*words, name], inner[name]))]

    return below(["nybble"], typer.main.get_command(app))


def command_help() -> str:
    """What --help prints for each command."""
    environment = os.environ | {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    parts = []
    for words in commands():
        run = [sys.executable, "-m", *words, "--help"]
        printed = subprocess.run(run, capture_output=True, text=True, check=True, env=environment).stdout
        lines = "\n".join(line.rstrip() for line in printed.strip().splitlines())
        parts.append(f"## {' '.join(words)}\n\n```\n{lines}\n```")
    return "\n\n".join(parts)


def smollm2_results() -> str:
    """What benchmarks/smollm2_against_llama_cpp.sh measured on each kind of machine, engine beside engine."""
    made_by = "[`benchmarks/smollm2_against_llama_cpp.sh`](benchmarks/smollm2_against_llama_cpp.sh)"
    lines = [
        "| instruction set | | threads | nybble tok/s | share of the ceiling | llama.cpp tok/s | ratio |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    machines = []
    for folder in result_folders():
        path = folder / "smollm2_against_llama_cpp.json"
        if not path.exists():
            continue
        rows = json.loads(path.read_text(encoding="utf-8"))
        theirs = {work_of(row): row["tokens_per_second"] for row in rows if not is_ours(row)}
        for row in filter(is_ours, rows):
            other, speed = theirs[work_of(row)], row["tokens_per_second"]
            name = "prompt of 512 tokens" if row["test"].startswith("pp") else "generating 128 tokens"
            lines.append(
                f"| {row['isa']} | {name} | {row['threads']} | {speed:.0f} | {share_of_ceiling(row)} | {other:.0f} "
                f"| {speed / other:.1f} x |"
            )
        first = rows[0]
        machines.append(
            f"{folder.name} {first['cpu']}, {first['measured_at'][:10]}, {first['processes']} fresh processes"
        )
    about = (
        f"SmolLM2-135M-Instruct, Q4_1, the same file; medians, processes interleaved. Machines: "
        f"{'; '.join(machines)}. Made by {made_by}; more in [docs/speed.md](docs/speed.md)."
    )
    return "\n".join((*lines, "", about))


def speed(pattern: str) -> str:
    """What `nybble bench` saved in files of that pattern, a table for each kind of machine."""
    parts = []
    for folder in result_folders():
        paths = [path for path in sorted(folder.glob(pattern)) if not path.name.startswith("linear_")]
        files = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        if not files:
            continue
        others = list(dict.fromkeys(row["engine"] for rows in files for row in rows if not is_ours(row)))
        lines = [
            f"| {' | '.join(['model', 'test', 'threads', 'tok/s', 'share of the ceiling', *others])} |",
            f"|---|---|--:|--:|--:|{'--:|' * len(others)}",
        ]
        for rows in files:
            found = {(row["engine"], *work_of(row)): row["tokens_per_second"] for row in rows}
            for row in filter(is_ours, rows):
                rates = [found.get((name, *work_of(row))) for name in others]
                ratios = [
                    "" if rate is None else f"{rate:.0f} ({row['tokens_per_second'] / rate:.2f} x)" for rate in rates
                ]
                cells = [row["model"], test_of(row), str(row["threads"]), f"{row['tokens_per_second']:.0f}"]
                lines.append(f"| {' | '.join([*cells, share_of_ceiling(row), *ratios])} |")
        processes = " or ".join(str(count) for count in sorted({rows[0]["processes"] for rows in files}))
        about = f"{folder.name} ({files[0][0]['cpu']}); medians of {processes} fresh processes each, interleaved."
        parts.append("\n".join((*lines, "", about)))
    return "\n\n".join(parts)


def linears() -> str:
    """One linear on int8 activations and one thread, in each format that was measured, and from one row to many."""
    parts = []
    for folder in result_folders():
        found: dict[str, dict[str, str]] = {}
        for path in sorted(folder.glob("linear_*.json")):
            for row in json.loads(path.read_text(encoding="utf-8")):
                if "_int8_" in row["engine"] and row["threads"] == 1:
                    cell = f"{row['gigaoperations_per_second']:.0f} GOP/s, {share_of_ceiling(row)}"
                    found.setdefault(row["model"].removeprefix("linear "), {})[row["test"]] = cell
                    about = f"{folder.name} ({row['cpu']}); medians of {row['processes']} fresh processes."
        if found:
            tests = list(dict.fromkeys(test for cells in found.values() for test in cells))
            lines = [f"| K x N | {' | '.join(tests)} |", f"|---|{'--:|' * len(tests)}"]
            lines += [
                f"| {name} | {' | '.join(cells.get(test, '') for test in tests)} |" for name, cells in found.items()
            ]
            parts.append("\n".join((*lines, "", about)))
    return "\n\n".join(parts)


def is_ours(row: dict[str, Any]) -> bool:
    """Whether a row is this engine's, a kernel of it included."""
    return row["isa"] is not None


def work_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What rows of two engines have in common."""
    return row["test"], row["threads"], row["depth"], row["batch"]


def test_of(row: dict[str, Any]) -> str:
    """``tg128``, with depth and batch where there are such."""
    depth = f" behind {row['depth']}" if row["depth"] else ""
    batch = f", {row['batch']} sequences" if row["batch"] > 1 else ""
    return f"{row['test']}{depth}{batch}"


def share_of_ceiling(row: dict[str, Any]) -> str:
    """``81 % of read bandwidth``; the KV cache is counted where there is one to speak of."""
    share = row["share_with_kv"] if row["depth"] else row["share"]
    return f"{100 * share:.0f} % of {'int8 peak' if row['bound'] == 'arithmetic' else 'read bandwidth'}"


def result_folders() -> list[Path]:
    """Of benchmarks/results, one for each instruction set that machines selected."""
    return sorted(path for path in (ROOT / "benchmarks" / "results").iterdir() if path.is_dir())


def walkthrough(*steps: str) -> str:
    """Commands of benchmarks/onnx_walkthrough.py and what they printed; of steps taken apart, the decode step."""
    made = results("onnx_walkthrough")["steps"]
    parts = []
    for step in steps:
        shown = made[step]["output"]
        if "a decode step" in shown:
            shown = f"a decode step{shown.partition('a decode step')[2].partition(f'{chr(10)}a step of')[0]}"
        lines = (f"$ {made[step]['command']}", shown, made[step]["remarks"])
        parts.append("\n".join(line.rstrip() for line in "\n".join(filter(None, lines)).splitlines()).strip())
    return "```\n" + "\n\n".join(parts) + "\n```"


def onnxruntime_kernels() -> str:
    """What benchmarks/onnxruntime_kernels.py measured."""
    rows = results("avx512_vnni/onnxruntime_kernels")
    lines = [
        "| | threads | | ONNX Runtime | with nybble's kernels | ratio | CPUs used by others |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        for figure, shown in (("prefill", f"prompt of {row['prompt']} tokens"), ("decode", "generating")):
            stock, ours = (statistics.median(row[name][figure]) for name in ("stock", "nybble"))
            place = f"| {row['model']} | {row['threads']} | {shown} |"
            busy = statistics.median([*row["stock"]["others"], *row["nybble"]["others"]])
            ratio = row[f"{figure}_ratio"]
            lines.append(f"{place} {stock:.0f} tok/s | {ours:.0f} tok/s | {ratio:.2f} x | {busy:.1f} |")
    first = rows[0]
    of_models = {row["model"]: (row["stock"]["error"], row["nybble"]["error"]) for row in rows}
    errors = "; ".join(f"{model} {stock:.4f} and {ours:.4f}" for model, (stock, ours) in of_models.items())
    about = (
        f"ONNX Runtime {first['onnxruntime']}, {first['cpu']}, accuracy level 4, the same files; medians of "
        f"{len(first['stock']['prefill'])} fresh processes each, interleaved, {first['measured_at'][:10]}. Mean error "
        f"of the logits, relative to their RMS, stock and with nybble's kernels: {errors}. Made by "
        "[`benchmarks/onnxruntime_kernels.py`](../benchmarks/onnxruntime_kernels.py)."
    )
    return "\n".join((*lines, "", about))


def onnxruntime_ratios() -> str:
    """The gist of the same."""
    rows = [row for row in results("avx512_vnni/onnxruntime_kernels") if row["threads"] == 1]
    prefill, decode = (sorted(row[f"{figure}_ratio"] for row in rows) for figure in ("prefill", "decode"))
    return (
        f"With one thread, 4-bit decoders of Qwen2.5-0.5B's shape read prompts {prefill[0]:.1f} to {prefill[-1]:.1f} "
        f"times as fast as on its own kernels at\naccuracy level 4, and generate {decode[0]:.1f} to {decode[-1]:.1f} "
        "times as fast ([figures](docs/onnx.md#how-fast))."
    )


def genai_greedy() -> str:
    """What benchmarks/genai_greedy.py measured."""
    made = results("genai_greedy")
    prompts = made["prompts"]
    differ = [row for row in prompts if row["first_difference"] is not None]
    lines = [
        f"Of {len(prompts)} greedy answers of SmolLM2-135M-Instruct in 4 bits, {len(prompts) - len(differ)} were equal "
        f"(GenAI {made['onnxruntime_genai']}, [`benchmarks/genai_greedy.py`](../benchmarks/genai_greedy.py))."
    ]
    lines += [
        f"The other first differed where the two best logits were {row['best_logits_apart']:.2f} apart, and the "
        f"providers' logits up to {row['providers_apart']:.1f}."
        for row in differ
    ]
    return "\n".join(lines)


def onnx_accuracy() -> str:
    """What benchmarks/onnx_accuracy.py measured."""
    lines = [
        "| | | relative RMS error | largest, of the largest logit | KL divergence | greedy answers equal |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for model in results("onnx_accuracy")["models"]:
        for name, found in model.items():
            if isinstance(found, dict):
                equal = [answer["first_difference"][name] is None for answer in model["greedy"]]
                errors = " | ".join(
                    f"{found[key]:.2g}" for key in ("relative_rms", "worst_relative_to_largest", "mean_kl")
                )
                lines.append(f"| {model['model']} | {name} | {errors} | {sum(equal)} of {len(equal)} |")
    return "\n".join(lines)


def kv_accuracy() -> str:
    """What each type of KV cache costs, of ``results/kv_accuracy.json``."""
    found = results("kv_accuracy")
    rows = "\n".join(
        f"| `{row['kv']}` | {row['kl_divergence_mean']:.6f} | {row['kl_divergence_99_percent']:.5f} "
        f"| {row['same_top_token']:.2%} |"
        for row in found["rows"]
    )
    return f"""| `--kv` | KL divergence, mean | 99 % below | same likeliest token |
|---|---|---|---|
{rows}

KL divergence in nats from an fp32 cache, fp32 activations in both, {found["model"]}, {found["rows"][0]["positions"]}
positions (`benchmarks/kv_accuracy.py`).
"""


def results(name: str) -> Any:
    """What a script of benchmarks/ printed, as it is kept."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def shapes() -> str:
    """The names that `nybble bench --shape` knows."""
    from nybble.bench.shapes import SHAPES

    return " ".join(f"`{name}`" for name in SHAPES)


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
    counts = json.loads((ROOT / "benchmarks" / "riscv" / "counts.json").read_text(encoding="utf-8"))
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
    counts = json.loads((ROOT / "benchmarks" / "riscv" / "counts.json").read_text(encoding="utf-8"))
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
    folder = ROOT / "benchmarks" / "riscv"
    of_clang, of_gcc = (json.loads((folder / f"counts{of}.json").read_text(encoding="utf-8")) for of in ("", "-gcc"))
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


PARTS: dict[str, Callable[[], str]] = {
    "kernels": kernel_table,
    "commands": command_help,
    "smollm2": smollm2_results,
    "speed of the default model": lambda: speed("smollm2_against_*.json"),
    "speed of linears": linears,
    "speed of shapes": lambda: speed("*_w?_block*.json"),
    "speed behind a context": lambda: speed("*_depth.json"),
    "speed of several sequences": lambda: speed("*_batch.json"),
    "kv accuracy": kv_accuracy,
    "shapes": shapes,
    "instruction counts": instruction_counts,
    "attention counts": attention_counts,
    "instruction counts of gcc": instruction_counts_of_gcc,
    "onnx convert": lambda: walkthrough("run", "convert", "inspect"),
    "onnx exported": lambda: walkthrough("inspect exported"),
    "onnx before": lambda: walkthrough("explain before"),
    "onnx after": lambda: walkthrough("patch", "explain after"),
    "onnx nybble": lambda: walkthrough("explain nybble"),
    "onnx kernels": onnxruntime_kernels,
    "onnx ratios": onnxruntime_ratios,
    "onnx accuracy": onnx_accuracy,
    "genai greedy": genai_greedy,
}


def regenerated(text: str) -> str:
    """`text` with all its parts made anew."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part['name']]()}\n{part[3]}", text)


def main() -> int:
    """0 if everything was up to date (or has been rewritten), 1 if `--check` found something stale."""
    check = "--check" in sys.argv[1:]
    stale = []
    for path in [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]:
        text = path.read_text(encoding="utf-8")
        fresh = regenerated(text)
        if fresh != text:
            stale.append(f"{path.name}: {'stale' if check else 'rewritten'}")
            if not check:
                path.write_text(fresh, encoding="utf-8")
    print("\n".join(stale) or "up to date")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
