"""Tables of what `nybble bench` saved in benchmarks/results, for the parts of regenerate.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


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
        files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(pattern))]
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
    return sorted(path for path in RESULTS.iterdir() if path.is_dir())
