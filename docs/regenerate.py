"""Rewrites the parts of the docs that show what nybble prints; `--check` only says whether they are up to date.

A part stands between `<!-- begin: NAME -->` and `<!-- end -->` lines in a Markdown file of this folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PART = re.compile(r"(<!-- begin: (?P<name>[^\n]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def kernel_table() -> str:
    """Every linear kernel of the registry, one row for each kind, instruction sets in the order they are preferred."""
    from nybble import _native

    kinds: dict[tuple[str, str], list[str]] = {}
    for _, isa, weights, activations in _native.linear_kernels():
        kinds.setdefault((weights, activations), []).append(isa)
    rows = [f"| {weights} | {activations} | {', '.join(isas)} |" for (weights, activations), isas in kinds.items()]
    return "\n".join(("| weights | activations | instruction sets |", "|---|---|---|", *rows))


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


PARTS: dict[str, Callable[[], str]] = {"kernels": kernel_table, "commands": command_help}


def regenerated(text: str) -> str:
    """`text` with all its parts made anew."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part['name']]()}\n{part[3]}", text)


def main() -> int:
    """0 if everything was up to date (or has been rewritten), 1 if `--check` found something stale."""
    check = "--check" in sys.argv[1:]
    stale = []
    for path in sorted(DOCS.glob("*.md")):
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
