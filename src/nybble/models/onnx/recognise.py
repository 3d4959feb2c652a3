"""From an ONNX graph to ours: the walk from node to node, and what each kind of node is read by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedFeature
from ...formats.onnx_model import DataType, OnnxModel, OnnxNode, OnnxTensor, Subgraph
from ...graph.check import check
from ...graph.graph import Buffer, Graph, buffers_read
from ...graph.ops import Linear
from . import attention, linears, pointwise
from .causality import check_masks
from .movement import DoesNotFit, compute, concatenate, known_attributes, move
from .rotary import frequencies_of_tables
from .values import (
    PAST_TOKENS,
    STEP_TOKENS,
    Array,
    Cache,
    Deferred,
    Dequantised,
    Elements,
    Known,
    Tokens,
    Value,
    Weight,
)
from .walk import Walk, as_known, described, shape_of

Handler = Callable[[Walk, OnnxNode], list[Value]]

_ONNX: Mapping[str, Handler] = {
    "Add": pointwise.add,
    "Cast": pointwise.cast,
    "DequantizeLinear": linears.dequantize_linear,
    "Div": pointwise.divide,
    "Gather": pointwise.gather,
    "Gemm": linears.gemm,
    "MatMul": linears.mat_mul,
    "Mul": pointwise.multiply,
    "Pow": pointwise.power,
    "RMSNormalization": pointwise.norm,
    "Reciprocal": pointwise.reciprocal,
    "ReduceMean": pointwise.reduce_mean,
    "RotaryEmbedding": attention.rotary_embedding,
    "Sigmoid": pointwise.sigmoid,
    # ONNX Runtime accepts its own norm in ONNX's domain, and its builders write it there.
    "SimplifiedLayerNormalization": pointwise.norm,
    "Sqrt": pointwise.root,
    "Swish": pointwise.quick_gelu,
}
_MICROSOFT: Mapping[str, Handler] = {
    "GatherBlockQuantized": pointwise.gather_block_quantized,
    "GroupQueryAttention": attention.group_query_attention,
    "MatMulNBits": linears.mat_mul_n_bits,
    "MultiHeadAttention": attention.multi_head_attention,
    "QuickGelu": pointwise.quick_gelu,
    "RotaryEmbedding": attention.rotary_embedding,
    "SimplifiedLayerNormalization": pointwise.norm,
    "SkipSimplifiedLayerNormalization": pointwise.skip_norm,
}
_HANDLERS: Mapping[str, Mapping[str, Handler]] = {"": _ONNX, "com.microsoft": _MICROSOFT}


def recognise(model: OnnxModel, context_length: int | None) -> Graph:
    """The graph of a decoder, found by what its nodes compute, whatever they are called.

    ``context_length`` in tokens is the model's own limit if something outside the graph states it; the rotation's
    tables limit it too. Raises :class:`UnsupportedFeature` naming the first node that does not fit.
    """
    walk = Walk(model)
    _declare_inputs(walk)
    for node in model.nodes:
        try:
            outputs = _outputs(walk, node)
            _bind(walk, node, outputs)
        except DoesNotFit as problem:
            raise walk.refuse(node, str(problem)) from None
    return _finished(walk, context_length)


def _declare_inputs(walk: Walk) -> None:
    head_dim = head_features(walk.model)
    for value in walk.model.inputs:
        if value.name in walk.values:
            continue  # an initialiser, which files of before IR version 4 list here too
        shape = value.shape or ()
        if len(shape) == 4:
            walk.declare_cache(value, head_dim)
        elif len(shape) == 2 and value.name == "input_ids":
            walk.values[value.name] = Tokens()
        elif len(shape) == 2 and value.name == "attention_mask":
            walk.values[value.name] = Known(np.ones((1, PAST_TOKENS + STEP_TOKENS), np.int64))
        elif len(shape) == 2 and value.name == "position_ids":
            walk.values[value.name] = Known(np.arange(PAST_TOKENS, PAST_TOKENS + STEP_TOKENS, dtype=np.int64)[None])
        else:
            raise UnsupportedFeature(
                f"{walk.file}: the graph's input {value.name!r} of shape {value.shape} is not token ids "
                "(input_ids), a mask (attention_mask), positions (position_ids) or a cache of four dimensions"
            )


def head_features(model: OnnxModel) -> int | None:
    """Features of a head, as the tables of the first rotation tell; inputs often leave it open."""
    places = {"GroupQueryAttention": (7,), "RotaryEmbedding": (1, 2)}
    for node in model.nodes:
        for place in places.get(node.op_type, ()):
            name = node.inputs[place] if place < len(node.inputs) else ""
            tensor = model.initializers.get(name)
            if tensor is not None and len(tensor.shape) == 2:
                return 2 * tensor.shape[1]
    return None


def _outputs(walk: Walk, node: OnnxNode) -> list[Value]:
    if any(isinstance(value, Subgraph) for value in node.attributes.values()):
        raise DoesNotFit("it holds a graph of its own, which nybble does not run")
    if node.domain not in _HANDLERS:
        raise DoesNotFit(f"it is of the domain {node.domain!r}, which nybble does not know")
    operands = [walk.operand(node, place) for place in range(len(node.inputs))]
    values = None if node.domain else _moved(walk, node, operands)
    if values is not None:
        return values
    handler = _HANDLERS[node.domain].get(node.op_type)
    if handler is None:
        raise DoesNotFit("nybble does not know this op, or not with such operands")
    return handler(walk, node)


def _moved(walk: Walk, node: OnnxNode, operands: list[Value | None]) -> list[Value] | None:
    """The outputs of a node that only moves elements, or computes with lengths; None if it does neither."""
    if node.op_type == "Constant":
        return [_constant(node)]
    if node.op_type in ("Shape", "Size"):
        found = shape_of(operands[0] if operands else None)
        if operands and isinstance(operands[0], Deferred):
            return [operands[0]]
        if found is None:
            raise DoesNotFit(f"it asks for the shape of {described(operands[0] if operands else None)}")
        return pointwise.shape(node, found)
    arrays = [as_known(value) for value in operands]
    given = [array is not None or value is None for array, value in zip(arrays, operands, strict=True)]
    first = operands[0] if operands else None
    if node.op_type == "Concat" and operands and all(_is_moveable(value) for value in operands):
        parts = [value.numbers if isinstance(value, Elements) else as_known(value) for value in operands]
        joined = concatenate(node, [part for part in parts if part is not None])
        if all(isinstance(value, Elements) for value in operands):
            return [Elements(joined.astype(np.int64, copy=False))]
        if any(isinstance(value, Elements) for value in operands):
            raise DoesNotFit("it joins activations and constants")
        return [Known(joined)]
    if isinstance(first, Weight | Dequantised) and all(given[1:]):
        weight = _moved_weight(node, first, arrays[1:])
        if weight is not None:
            return [weight]
    if isinstance(first, Elements) and all(given[1:]):
        moved = move(node, first.numbers, arrays[1:])
        return None if moved is None else [Elements(numbers.astype(np.int64, copy=False)) for numbers in moved]
    if operands and all(given) and arrays[0] is not None:
        return _computed(node, arrays[0], arrays)
    deferred = next((value for value in operands if isinstance(value, Deferred)), None)
    if deferred is not None and all(
        known or isinstance(value, Deferred) for known, value in zip(given, operands, strict=True)
    ):
        return [deferred] * len(node.outputs)
    return [first] if node.op_type == "Identity" and first is not None else None


def _computed(node: OnnxNode, first: Array, arrays: list[Array | None]) -> list[Value] | None:
    """The outputs of a node that computes with lengths, masks or positions; None if it does not."""
    try:
        results = move(node, first, arrays[1:])
        if results is None:
            results = compute(node, arrays)
    except DoesNotFit as problem:
        return [Deferred(f"{node} before it: {problem}")] * len(node.outputs)
    return None if results is None else [Known(array) for array in results]


def _is_moveable(value: Value | None) -> bool:
    return isinstance(value, Elements) or as_known(value) is not None


def _moved_weight(node: OnnxNode, weight: Weight | Dequantised, arguments: list[Array | None]) -> Value | None:
    """A weight turned, reshaped or widened stays a weight; None for anything else."""
    if node.op_type == "Transpose" and node.attributes.get("perm", [1, 0]) == [1, 0]:
        return replace(weight, transposed=not weight.transposed)
    if isinstance(weight, Dequantised) or weight.transposed:
        return None
    tensor = weight.tensor
    if node.op_type == "Reshape":
        unread = np.broadcast_to(np.int8(0), tensor.shape)  # only the shape is wanted; no memory is taken
        moved = move(node, unread, arguments)
        return None if moved is None else Weight(replace(tensor, shape=moved[0].shape))
    if node.op_type == "Cast" and tensor.data_type.is_float and node.attributes.get("to") == DataType.FLOAT:
        return weight
    return None


def _constant(node: OnnxNode) -> Value:
    known_attributes(node, "value", "value_int", "value_ints", "value_float", "value_floats")
    if len(node.attributes) != 1:
        raise DoesNotFit("it has no value, or several")
    (name, value), *_ = node.attributes.items()
    if isinstance(value, OnnxTensor):
        return Weight(value)
    dtype = np.int64 if name.startswith("value_int") else np.float32
    if not isinstance(value, int | float | list):
        raise DoesNotFit(f"its value is a {type(value).__name__}")
    return Known(np.array(value, dtype))


def _bind(walk: Walk, node: OnnxNode, outputs: list[Value]) -> None:
    if len(node.outputs) > len(outputs):
        raise DoesNotFit(f"it has {len(node.outputs)} outputs")
    for name, value in zip(node.outputs, outputs, strict=False):
        if name and name in walk.values:
            raise DoesNotFit(f"it writes {name!r}, which is written already")
        if name:
            walk.values[name] = value


def _finished(walk: Walk, context_length: int | None) -> Graph:
    logits = _logits(walk)
    if not walk.layers or walk.heads is None:
        raise UnsupportedFeature(f"{walk.file}: the graph has no attention; expected a decoder")
    if len(walk.rotations) != 1:
        raise UnsupportedFeature(
            f"{walk.file}: the graph rotates with {len(walk.rotations)} pairs of tables; nybble runs models with one"
        )
    cosines, sines = (_table(walk, name) for name in next(iter(walk.rotations)))
    try:
        frequencies, length = frequencies_of_tables(cosines, sines)
    except DoesNotFit as problem:
        raise UnsupportedFeature(f"{walk.file}: {', '.join(next(iter(walk.rotations)))}: {problem}") from None
    if abs(length - 1) > 1e-3:
        raise UnsupportedFeature(
            f"{walk.file}: the rotation's tables are scaled by {length:g}; nybble runs models that scale by 1"
        )
    limit = min(len(cosines), context_length or len(cosines))
    check_masks(walk, limit)
    _note_levels(walk)
    kv_heads, head_dim = walk.heads
    buffers = _used_buffers(walk, logits)
    return check(
        Graph(
            ops=tuple(walk.ops),
            buffers=buffers,
            tensors=walk.tensors,
            logits=logits,
            vocabulary=buffers[logits].width,
            layers=len(walk.layers),
            kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=limit,
            inverse_frequencies=frequencies,
        )
    )


def _note_levels(walk: Walk) -> None:
    if walk.levels[0]:
        import logging

        logging.getLogger(__name__).warning(
            "%s: %d of %d MatMulNBits nodes have no accuracy_level; their activations are rounded to int8 as with 4, "
            "unless f32 is asked for. ONNX Runtime would take a slower fp32 path; nybble patch sets it.",
            walk.file,
            walk.levels[0],
            walk.levels.total(),
        )


def _table(walk: Walk, name: str) -> NDArray[np.floating]:
    table = walk.model.initializers[name].array()
    if not np.issubdtype(table.dtype, np.floating):
        raise UnsupportedFeature(f"{walk.file}: {name}: the rotation's table is {table.dtype}; expected floats")
    return table.view(table.dtype.newbyteorder("="))


def _logits(walk: Walk) -> str:
    """The buffer of the first output that is all of what a linear writes."""
    written = {op.output for op in walk.ops if isinstance(op, Linear)}
    for output in walk.model.outputs:
        value = walk.values.get(output.name)
        if value is None:
            raise UnsupportedFeature(f"{walk.file}: the graph's output {output.name!r} is written by no node")
        rows = walk.table.rows(value.numbers) if isinstance(value, Elements) else None
        if rows is not None and rows.buffer in written and walk.layers:
            return rows.buffer
        if not isinstance(value, Cache | Elements):
            raise UnsupportedFeature(f"{walk.file}: the graph's output {output.name!r} is {described(value)}")
    raise UnsupportedFeature(f"{walk.file}: none of the graph's outputs are logits, which a matrix product writes last")


def _used_buffers(walk: Walk, logits: str) -> dict[str, Buffer]:
    read = {name for op in walk.ops for name in buffers_read(op)} | {logits}
    parents = {walk.table.buffers[name].parent for name in read}
    written = {getattr(op, "output", None) for op in walk.ops}
    return {
        name: buffer
        for name, buffer in walk.table.buffers.items()
        if name in read or name in parents or name in written
    }
