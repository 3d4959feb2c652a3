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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from instruction_tables import attention_counts, instruction_counts, instruction_counts_of_gcc
from speed_tables import RESULTS, linears, smollm2_results, speed

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
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def shapes() -> str:
    """The names that `nybble bench --shape` knows."""
    from nybble.bench.shapes import SHAPES

    return " ".join(f"`{name}`" for name in SHAPES)


PARTS: dict[str, Callable[[], str]] = {
    "kernels": kernel_table,
    "commands": command_help,
    "smollm2": smollm2_results,
    "speed of the default model": lambda: speed("smollm2_against_*.json"),
    "speed of linears": linears,
    # Names of shapes end with how many parameters they have, in millions or billions; those of single linears do not.
    "speed of shapes": lambda: speed("*[bm]_w?_block*.json"),
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
