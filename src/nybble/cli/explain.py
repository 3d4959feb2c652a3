"""``nybble explain``: what would run where, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .output import print_json, work_progress
from .report import memory_facts, memory_line
from .table import columns, print_table

if TYPE_CHECKING:
    from ..engine.explanation import Explanation, TensorExplanation

EXAMPLES = (
    "nybble explain",
    "nybble explain models/tiny.gguf --accuracy f32",
    "NYBBLE_ISA=portable nybble explain smollm2-135m --json",
)


def explain(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP)] = None,
    accuracy: options.Accuracy = "int8",
    offline: options.Offline = False,
    as_json: options.Json = False,
) -> None:
    """Show what loading a model would make of each tensor, and why, without loading it.

    For each tensor: its type in the file, what it is packed as, the bytes a step of decoding reads of it, how far
    packing moves its weights (root mean square, relative), and the kernel that reads it.
    """
    from ..engine import explanation

    with work_progress() as progress:
        explained = explanation.explain(model, accuracy=accuracy, offline=offline, progress=progress)
    if as_json:
        print_json(_facts(explained))
    else:
        _print_tables(explained)


def _facts(explained: Explanation) -> dict[str, Any]:
    """Sizes in bytes."""
    return {
        "path": str(explained.path),
        "architecture": explained.architecture,
        "isa": explained.isa,
        "accuracy": explained.accuracy.value,
        "tensors": [asdict(tensor) for tensor in explained.tensors],
        "bytes_per_token": explained.bytes_per_token,
        "stored_bits_per_weight": explained.stored_bits_per_weight,
        "packed_bits_per_weight": explained.packed_bits_per_weight,
        "memory": memory_facts(explained.memory),
    }


def _print_tables(explained: Explanation) -> None:
    ways: dict[tuple[str, str], list[TensorExplanation]] = {}
    for tensor in explained.tensors:
        ways.setdefault((tensor.kernel, tensor.why), []).append(tensor)
    number = {way: f"[{index}]" for index, way in enumerate(ways, start=1)}
    print_table(
        columns("TENSOR", "STORED", "PACKED AS", "BYTES/TOKEN>", "ERROR", "HOW"),
        [
            (
                tensor.name,
                tensor.stored,
                tensor.packed,
                f"{tensor.bytes_per_token:,}",
                "exact" if tensor.error is None else f"{tensor.error.relative_rms:.1e}",
                number[tensor.kernel, tensor.why],
            )
            for tensor in explained.tensors
        ],
    )
    print()
    print_table(
        columns("HOW", "KERNEL", "TENSORS>", "BYTES/TOKEN>", "WHY"),
        [
            (number[way], way[0], str(len(tensors)), f"{sum(tensor.bytes_per_token for tensor in tensors):,}", way[1])
            for way, tensors in ways.items()
        ],
    )
    print()
    print(
        f"model: {explained.path} ({explained.architecture}), {explained.isa}, {explained.accuracy.value} activations"
    )
    print(f"weights read per token: {explained.bytes_per_token:,} bytes")
    print(
        f"bits per weight: {explained.stored_bits_per_weight:.2f} in the file, "
        f"{explained.packed_bits_per_weight:.2f} packed"
    )
    print(f"memory: {memory_line(explained.memory)}")
