"""Which buffers may share memory: those whose lifetimes do not overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .graph import Graph, buffer_written, buffers_read
from .ops import Linear


@dataclass(frozen=True, slots=True)
class SlotShape:
    """Memory for ``width`` features a row; ``block`` is 0 for fp32, else that of int8 activations; ``layout`` that of
    the weights these will be multiplied with.
    """

    width: int
    per_output: bool
    block: int
    layout: str


@dataclass(frozen=True, slots=True)
class Slots:
    """``shapes`` of the slots, and for each buffer that is no view the slot it lives in."""

    shapes: tuple[SlotShape, ...]
    slot_of: Mapping[str, int]


def assign_slots(graph: Graph) -> Slots:
    """Give every buffer a slot, reusing one of the same shape when its last reader has run.

    A linear may write over its residual if it is the last to read it: each element is read before it is written. Not if
    the residual is its input too, which all of the output reads. The logits keep their slot to the end.
    """
    last_read = {_root(graph, graph.logits): len(graph.ops)}
    for index, op in enumerate(graph.ops):
        for name in buffers_read(op):
            last_read[_root(graph, name)] = max(index, last_read.get(_root(graph, name), 0))
    shapes: list[SlotShape] = []
    slot_of: dict[str, int] = {}
    free: dict[SlotShape, list[int]] = {}

    def release(name: str) -> None:
        slot = slot_of[name]
        free.setdefault(shapes[slot], []).append(slot)

    for index, op in enumerate(graph.ops):
        dying = {root for name in buffers_read(op) if last_read[root := _root(graph, name)] == index}
        if isinstance(op, Linear) and op.residual in dying and op.residual != _root(graph, op.input):
            release(op.residual)
            dying.discard(op.residual)
        written = buffer_written(op)
        if written is not None:
            buffer = graph.buffers[written]
            shape = SlotShape(buffer.width, buffer.per_output, buffer.quantised_block or 0, buffer.layout)
            if not free.get(shape):
                shapes.append(shape)
                free[shape] = [len(shapes) - 1]
            slot_of[written] = free[shape].pop()
        for name in sorted(dying):
            release(name)
    return Slots(tuple(shapes), slot_of)


def _root(graph: Graph, name: str) -> str:
    return graph.buffers[name].parent or name
