"""The int8 inputs that linears over quantised weights multiply with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..graph import Buffer, Graph
from ..ops import Linear, Op, Quantise
from .rewrite import rebuilt


class Rounding(NamedTuple):
    """How activations become int8: for weights in blocks of ``block``, packed as ``layout``."""

    block: int
    layout: str = "panel32"


def quantise_activations(graph: Graph, rounding_of: Callable[[Linear], Rounding | None]) -> Graph:
    """Let each linear read its input as int8, rounded as ``rounding_of`` says.

    Linears that read the same buffer with the same rounding share one Quantise; linears for which ``rounding_of`` gives
    None keep their fp32 input. An input that is quantised already stays as it is.
    """
    ops: list[Op] = []
    changed: dict[str, Buffer] = {}
    for op in graph.ops:
        rounding = rounding_of(op) if isinstance(op, Linear) else None
        if not isinstance(op, Linear) or rounding is None or graph.buffers[op.input].quantised_block is not None:
            ops.append(op)
            continue
        source = graph.buffers[op.input]
        codes = f"{op.input}.int8_block{rounding.block}_{rounding.layout}"
        if codes not in changed:
            changed[codes] = Buffer(source.width, source.per_output, rounding.block, layout=rounding.layout)
            ops.append(Quantise(f"{op.label} · quantised input", op.input, codes))
        ops.append(replace(op, input=codes))
    return rebuilt(graph, ops, changed)
