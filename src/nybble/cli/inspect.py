"""``nybble inspect``: what a model file holds, and what is odd about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .exit_codes import FAILURE
from .output import megabytes, one_line, print_json, work_progress
from .table import columns, print_table

if TYPE_CHECKING:
    from ..inspection.inspection import Inspection

EXAMPLES = (
    "nybble inspect model.onnx",
    "nybble inspect smollm2-135m --json",
    "nybble inspect model.safetensors --strict",
)
LONGEST_VALUE = 100
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if anything is odd.")]


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.ANY_MODEL_HELP)],
    strict: Strict = False,
    offline: options.Offline = False,
    as_json: options.Json = False,
) -> None:
    """Show what a GGUF, ONNX or safetensors model holds, and what is odd about it, without running it.

    Linears of all layers are counted together by kind. Findings say what makes a model slow or wrong, and what mends
    it.
    """
    from ..hub.resolve import resolve
    from ..inspection.inspect import inspect as inspect_file

    with work_progress() as progress:
        path = resolve(model, offline=offline, progress=progress)
    found = inspect_file(path)
    if as_json:
        print_json({**asdict(found), "path": str(found.path)})
    else:
        _print(found)
    if strict and found.findings:
        raise typer.Exit(FAILURE)


def _print(found: Inspection) -> None:
    print(one_line(f"{found.path}: {found.format}, {found.architecture}, {megabytes(found.file_bytes)}"))
    print(f"{found.parameters:,} parameters, {found.bits_per_weight:.2f} bits each")
    tied = {True: "tied to the embedding", False: "weights of its own", None: "none"}[found.tied]
    print(one_line(f"embedding: {found.embedding}; head: {tied}"))
    print()
    print_table(
        columns("LINEAR", "COUNT>", "OUTPUTS>", "FEATURES>", "STORED", "BITS>", "BLOCK>", "ZERO POINTS", "LEVEL>"),
        [
            (
                kind.name,
                str(kind.count),
                str(kind.outputs),
                str(kind.features),
                kind.storage,
                str(kind.bits),
                "" if kind.block is None else str(kind.block),
                kind.zero_points,
                "" if kind.accuracy_level is None else str(kind.accuracy_level),
            )
            for kind in found.linears
        ],
    )
    print()
    for key, value in found.metadata.items():
        shown = value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}… ({len(value):,} characters)"
        print(f"{one_line(key)}: {one_line(shown)}")
    print()
    for finding in found.findings:
        print(one_line(f"{finding.name}: {finding.where}: {finding.reason}; to mend it: {finding.mend}"))
    if not found.findings:
        print("nothing odd")
