"""Guards against: buffers that share memory while both are needed, and memory that nobody shares."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.graph.graph import Buffer, Graph, buffer_written, buffers_read
from nybble.graph.ops import Add, Linear
from nybble.graph.passes.lower import lower
from nybble.graph.passes.quantise_activations import Rounding
from nybble.graph.slots import assign_slots
from nybble.models.build import build_graph
from tests.models.tiny import TinyModel, tiny_checkpoint

from .small import embedded, random_graphs, tensor

SQUARE = tensor("w", np.eye(32))


def root(graph: Graph, name: str) -> str:
    return graph.buffers[name].parent or name


def check(graph: Graph) -> None:
    """Follow which buffer each slot holds, op by op."""
    slots = assign_slots(graph)
    assert set(slots.slot_of) == {name for name, buffer in graph.buffers.items() if buffer.parent is None}
    holds: dict[int, str] = {}
    for op in graph.ops:
        for name in buffers_read(op):
            assert holds[slots.slot_of[root(graph, name)]] == root(graph, name), f"{op.label} reads what is gone"
        output = buffer_written(op)
        if output is None:
            continue
        slot = slots.slot_of[output]
        buffer, shape = graph.buffers[output], slots.shapes[slot]
        assert (shape.width, shape.per_output, shape.block, shape.layout) == (
            buffer.width,
            buffer.per_output,
            buffer.quantised_block or 0,
            buffer.layout,
        )
        overwritten = {name for name in buffers_read(op) if slots.slot_of[root(graph, name)] == slot}
        if overwritten:
            # Only a residual, and only if the whole buffer is read nowhere else in the op.
            assert isinstance(op, Linear) and overwritten == {op.residual}, f"{op.label} overwrites what it reads"
        holds[slot] = output
    assert holds[slots.slot_of[graph.logits]] == graph.logits


@settings(max_examples=150)
@given(random_graphs(), st.sampled_from([None, 16, 32]))
def test_no_two_live_buffers_share_a_slot(graph: Graph, block: int | None) -> None:
    check(graph)
    check(lower(graph, lambda linear: None if block is None else Rounding(block)))


def test_a_linear_may_write_over_its_residual_but_not_over_its_input() -> None:
    over = Linear("over", "x", ("w",), "y", residual="x")
    apart = Linear("apart", "y", ("w",), "z", residual="x")
    both = embedded(32, over, apart, widths={"y": 32, "z": 32}, tensors=[SQUARE], logits="z")
    slots = assign_slots(both)
    assert len({slots.slot_of[name] for name in "xy"}) == 2
    assert slots.slot_of["z"] == slots.slot_of["x"]
    alone = embedded(32, over, widths={"y": 32}, tensors=[SQUARE], logits="y")
    slots = assign_slots(alone)
    assert slots.slot_of["x"] != slots.slot_of["y"]
    check(alone)


def test_a_view_keeps_all_of_its_parent() -> None:
    ops = (
        Linear("halves", "x", ("w",), "h"),
        Add("first", "left", "left", "a"),
        Add("other", "right", "a", "b"),
    )
    widths = {"h": 32, "left": Buffer(16, parent="h"), "right": Buffer(16, parent="h", offset=16), "a": 16, "b": 16}
    graph = embedded(32, *ops, widths=widths, tensors=[SQUARE], logits="b")
    check(graph)


def test_the_layers_of_a_model_share_their_memory() -> None:
    shapes = [
        assign_slots(lower(build_graph(tiny_checkpoint(TinyModel(layers=layers))), lambda linear: Rounding(32))).shapes
        for layers in (3, 9)
    ]
    assert shapes[0] == shapes[1]
