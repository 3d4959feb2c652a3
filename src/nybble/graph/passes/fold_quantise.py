"""Quantisation as the epilogue of the op that computes the activations."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Graph
from ..ops import Op, Quantise, RMSNorm, SwiGLU
from .rewrite import Uses, rebuilt


def fold_quantise(graph: Graph) -> Graph:
    """Let RMSNorm and SwiGLU write int8 codes themselves where a Quantise is all that reads them.

    They compute whole rows, as rounding needs; attention does not. A per-head RMSNorm is left alone.
    """
    uses = Uses(graph)
    folded: dict[int, Op] = {}
    removed: set[int] = set()
    for position, op in enumerate(graph.ops):
        if not isinstance(op, Quantise) or not uses.has_one_reader(op.input):
            continue
        producer_at = uses.written_at(op.input)
        producer = graph.ops[producer_at]
        if not isinstance(producer, RMSNorm | SwiGLU):
            continue
        if isinstance(producer, RMSNorm) and producer.group != graph.buffers[op.input].width:
            continue
        folded[producer_at] = replace(producer, output=op.output)
        removed.add(position)
    ops = [folded.get(position, op) for position, op in enumerate(graph.ops) if position not in removed]
    return rebuilt(graph, ops)
