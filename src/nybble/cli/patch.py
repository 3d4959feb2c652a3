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
    "nybble patch model.onnx custom.onnx --ort-custom-op",
)

Source = Annotated[Path, typer.Argument(metavar="IN.onnx", help="The model; it stays as it is.")]
Target = Annotated[Path, typer.Argument(metavar="OUT.onnx", help="The patched model, in the folder of its weights.")]
Level = Annotated[
    int | None,
    typer.Option(metavar="0..4", help="Set accuracy_level: 4 lets ONNX Runtime use int8 activations, 1 asks for fp32."),
]
Clear = Annotated[bool, typer.Option("--clear", help="Remove accuracy_level.")]
Only = Annotated[str | None, typer.Option(metavar="REGEX", help="Only nodes in whose name this is found.")]
CustomOp = Annotated[
    bool | None,
    typer.Option(
        "--ort-custom-op/--no-ort-custom-op",
        help="Move the nodes to nybble's custom operator for ONNX Runtime, or all back.",
    ),
]


def patch(
    source: Source,
    target: Target,
    accuracy_level: Level = None,
    clear: Clear = False,
    ort_custom_op: CustomOp = None,
    only: Only = None,
) -> None:
    """Set or remove the accuracy_level of an ONNX model's MatMulNBits nodes, or move them to nybble's custom operator.

    Nothing else changes, not a byte. Weights are copied, never loaded; those in files of their own stay where they are.
    """
    from ..formats.onnx_accuracy_level import patch_accuracy_level
    from ..formats.onnx_custom_op import move_from_custom_op, move_to_custom_op

    if [accuracy_level is not None, clear, ort_custom_op is not None].count(True) != 1:
        raise InvalidParameter("give one of --accuracy-level, --clear, --ort-custom-op and --no-ort-custom-op")
    if ort_custom_op is None:
        nodes = patch_accuracy_level(source, target, accuracy_level, only)
    elif ort_custom_op:
        nodes = move_to_custom_op(source, target, only)
    elif only is None:
        nodes = move_from_custom_op(source, target)
    else:
        raise InvalidParameter("--no-ort-custom-op moves all nodes back; leave out --only")
    counts = f"{nodes.changed} of {nodes.all} MatMulNBits nodes changed"
    if nodes.changed < nodes.meant:
        counts += f", {nodes.meant - nodes.changed} were so already"
    note(f"{target}: {counts}")
