"""``nybble patch``: mends an ONNX model without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidParameter
from .output import note

EXAMPLES = (
    "nybble patch model.onnx fast.onnx --accuracy-level 4",
    "nybble patch model.onnx mixed.onnx --accuracy-level 4 --only 'mlp|attn'",
    "nybble patch fast.onnx plain.onnx --clear",
)

Source = Annotated[Path, typer.Argument(metavar="IN.onnx", help="The model; it stays as it is.")]
Target = Annotated[Path, typer.Argument(metavar="OUT.onnx", help="The patched model, in the folder of its weights.")]
Level = Annotated[
    int | None,
    typer.Option(metavar="0..4", help="Set accuracy_level: 4 lets ONNX Runtime use int8 activations, 1 asks for fp32."),
]
Clear = Annotated[bool, typer.Option("--clear", help="Remove accuracy_level.")]
Only = Annotated[str | None, typer.Option(metavar="REGEX", help="Only nodes in whose name this is found.")]


def patch(
    source: Source, target: Target, accuracy_level: Level = None, clear: Clear = False, only: Only = None
) -> None:
    """Set or remove the accuracy_level of an ONNX model's MatMulNBits nodes.

    Nothing else changes, not a byte. Weights are copied, never loaded; those in files of their own stay where they are.
    """
    from ..formats.onnx_accuracy_level import patch_accuracy_level

    if (accuracy_level is None) is not clear:
        raise InvalidParameter("give either --accuracy-level or --clear")
    nodes = patch_accuracy_level(source, target, accuracy_level, only)
    counts = f"{nodes.changed} of {nodes.all} MatMulNBits nodes changed"
    if nodes.changed < nodes.meant:
        counts += f", {nodes.meant - nodes.changed} were so already"
    note(f"{target}: {counts}")
