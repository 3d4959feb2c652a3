"""Compute only the rows whose logits were asked for, from the earliest op on where that is possible."""

from __future__ import annotations

from dataclasses import replace

from ..check import POSITION_BOUND
from ..graph import Buffer, Graph, buffer_written, buffers_read
from ..ops import Op, SelectOutputs
from .rewrite import Uses, rebuilt, rename_reads


def select_outputs(graph: Graph) -> Graph:
    """Insert SelectOutputs behind the last op that needs every token of the step.

    That is the last layer's attention: from there on each row is computed by itself, so the output projection, the feed
    forward of the last layer, the final norm and the head run for requested rows only. Two buffers cross that line, the
    attention's output and the residual stream; each gets its own SelectOutputs.
    """
    if any(buffer.per_output for buffer in graph.buffers.values()):
        return graph
    uses = Uses(graph)
    cut = 1 + max((at for at, op in enumerate(graph.ops) if isinstance(op, POSITION_BOUND)), default=-1)
    before, after = graph.ops[:cut], graph.ops[cut:]

    crossing = dict.fromkeys(name for op in after for name in buffers_read(op) if uses.written_at(name) < cut)
    if uses.written_at(graph.logits) < cut:
        crossing[graph.logits] = None
    selected = {name: f"{name}.selected" for name in crossing}

    changed = {new: Buffer(graph.buffers[old].width, per_output=True) for old, new in selected.items()}
    written_after = {buffer_written(op) for op in after}
    for name, buffer in graph.buffers.items():
        if (buffer.parent or name) in written_after:
            changed[name] = replace(buffer, per_output=True)

    selections = [SelectOutputs(f"output rows of {old}", old, new) for old, new in selected.items()]
    ops: list[Op] = [*before, *selections, *(rename_reads(op, selected) for op in after)]
    return rebuilt(graph, ops, changed, logits=selected.get(graph.logits))
