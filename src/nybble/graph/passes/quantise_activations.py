"""The int8 inputs that linears over quantised weights multiply with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..graph import Buffer, Graph
from ..ops import Linear, Op, Quantise
from .rewrite import rebuilt


def quantise_activations(graph: Graph, block_of: Callable[[Linear], int | None]) -> Graph:
    """Let each linear for which ``block_of`` gives the block size of its weights read its input as int8.

    Linears that read the same buffer with the same block size share one Quantise; linears for which ``block_of`` gives
    None keep their fp32 input. An input that is quantised already stays as it is.
    """
    ops: list[Op] = []
    changed: dict[str, Buffer] = {}
    for op in graph.ops:
        block = block_of(op) if isinstance(op, Linear) else None
        if not isinstance(op, Linear) or block is None or graph.buffers[op.input].quantised_block is not None:
            ops.append(op)
            continue
        source = graph.buffers[op.input]
        codes = f"{op.input}.int8_block{block}"
        if codes not in changed:
            changed[codes] = Buffer(source.width, source.per_output, quantised_block=block)
            ops.append(Quantise(f"{op.label} · quantised input", op.input, codes))
        ops.append(replace(op, input=codes))
    return rebuilt(graph, ops, changed)
