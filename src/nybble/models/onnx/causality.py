"""Masks over other lengths than those of the walk: a window of thousands of tokens shows in no short step."""

from __future__ import annotations

import numpy as np

from ...formats.onnx_model import OnnxNode
from .attention import check_causal
from .movement import DoesNotFit, compute, concatenate, move
from .pointwise import shape as shape_value
from .values import Array, Known
from .walk import Walk, as_known

LONGEST_MASK = 1 << 16
LONGEST_PROMPT = 1 << 10


def check_masks(walk: Walk, context_length: int) -> None:
    """Compute the masks of ``walk`` again, for a prompt and for a token at the end of the context.

    Raises :class:`~nybble.errors.UnsupportedFeature` naming the node whose mask is not causal there.
    """
    longest = min(context_length, LONGEST_MASK)
    writers = {name: node for node in walk.model.nodes for name in node.outputs if name}
    for mask in dict.fromkeys(walk.masks):
        needed = _ancestors(mask, writers)
        nodes = [node for node in walk.model.nodes if id(node) in needed]
        for step, past in ((min(longest, LONGEST_PROMPT), 0), (1, longest - 1)):
            try:
                check_causal(_computed(walk, nodes, mask, step, past))
            except DoesNotFit as problem:
                reason = f"for {step} tokens after {past}, {problem}"
                raise walk.refuse(writers.get(mask, walk.model.nodes[0]), reason) from None


def _ancestors(name: str, writers: dict[str, OnnxNode]) -> set[int]:
    found: set[int] = set()
    waiting = [name]
    while waiting:
        node = writers.get(waiting.pop())
        if node is not None and id(node) not in found:
            found.add(id(node))
            if node.op_type not in ("Shape", "Size"):
                waiting.extend(node.inputs)
            else:
                waiting.extend(source for source in node.inputs if source in writers)
    return found


def _computed(walk: Walk, nodes: list[OnnxNode], wanted: str, step: int, past: int) -> Array:
    arrays: dict[str, Array] = {
        "attention_mask": np.ones((1, past + step), np.int64),
        "position_ids": np.arange(past, past + step, dtype=np.int64)[None],
    }
    shapes: dict[str, tuple[int, ...]] = {"input_ids": (1, step)}
    shapes |= {name: (*numbers.shape[:2], past, numbers.shape[3]) for name, numbers in walk.caches.items()}

    def read(name: str) -> Array | None:
        if not name:
            return None
        array = arrays.get(name)
        if array is None:
            array = as_known(walk.values.get(name)) if name in walk.model.initializers else None
        if array is None:
            raise DoesNotFit(f"its mask depends on {name!r}, which is no length, mask or position")
        return array

    for node in nodes:
        if node.op_type == "Constant":
            value = as_known(walk.values[node.outputs[0]])
            results: list[Array] | None = None if value is None else [value]
        elif node.op_type in ("Shape", "Size"):
            source = node.inputs[0]
            array = None if source in shapes else read(source)
            (known,) = shape_value(node, shapes[source] if array is None else array.shape)
            assert isinstance(known, Known)
            results = [known.array]
        else:
            inputs = [read(name) for name in node.inputs]
            present = [array for array in inputs if array is not None]
            if node.op_type == "Concat":
                results = [concatenate(node, present)]
            else:
                results = move(node, present[0], inputs[1:]) if present else None
                results = compute(node, inputs) if results is None else results
        if results is None:
            raise DoesNotFit(f"its mask is computed by {node}, which nybble does not know")
        arrays |= {name: array for name, array in zip(node.outputs, results, strict=False) if name}
    return arrays[wanted]
