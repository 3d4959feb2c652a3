"""Embeddings, norms, activations and sums: nodes that work on each row by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...formats.onnx_model import DataType, OnnxNode, OnnxTensor
from ...graph.ops import Add, Embed, Linear, RMSNorm, SwiGLU
from .elements import Rows
from .movement import DoesNotFit, attribute, known_attributes
from .values import STEP_TOKENS, Elements, Expression, Known, Tokens, Value, Weight
from .walk import Walk, as_known, described
from .weights import blocked_tensor, float_tensor, unsigned_codes


def gather(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Gather`` of the rows of a float table by token id."""
    known_attributes(node, "axis")
    if attribute(node, "axis", int, 0) != 0:
        raise DoesNotFit("it takes tokens along another axis than the first")
    source = walk.operand(node, 0)
    if not isinstance(source, Weight) or not isinstance(walk.operand(node, 1), Tokens):
        raise DoesNotFit(f"it takes {described(walk.operand(node, 1))} from {described(source)}; expected tokens")
    table = walk.float_matrix(source.tensor, transposed=source.transposed)
    return [_embed(walk, node, walk.take(table), table.shape)]


def gather_block_quantized(walk: Walk, node: OnnxNode) -> list[Value]:
    """``GatherBlockQuantized``: the rows of a quantised table by token id."""
    known_attributes(node, "bits", "block_size", "gather_axis", "quantize_axis")
    codes, scales, zero_points = walk.weight(node, 0), walk.weight(node, 2), walk.optional_weight(node, 3)
    if not isinstance(walk.operand(node, 1), Tokens):
        raise DoesNotFit(f"its indices are {described(walk.operand(node, 1))}; expected the token ids")
    if attribute(node, "gather_axis", int, 0) != 0 or attribute(node, "quantize_axis", int, 1) not in (1, -1):
        raise DoesNotFit("it gathers along another axis than the first, or has blocks along another than the last")
    packed = codes.data_type is DataType.UINT8
    bits = attribute(node, "bits", int, 4) if packed else codes.data_type.bits
    block = attribute(node, "block_size", int, 128)
    if len(codes.shape) != 2 or bits not in (2, 4, 8):
        raise DoesNotFit(f"its table has the shape {codes.shape} and {bits} bits")
    shape = (codes.shape[0], codes.shape[1] * 8 // bits if packed else codes.shape[1])
    if shape[1] % block:
        raise DoesNotFit(f"rows of {shape[1]} features in blocks of {block}; expected whole blocks")
    if not packed and codes.data_type not in (DataType.INT2, DataType.INT4, DataType.INT8) and zero_points is None:
        raise DoesNotFit("unsigned codes without zero points, whose meaning differs between versions")
    codes = unsigned_codes(codes, bits)
    zero_points = None if zero_points is None else unsigned_codes(zero_points, bits)
    table = blocked_tensor(codes, scales, zero_points, shape, bits, block)
    return [_embed(walk, node, walk.take(table), shape)]


def _embed(walk: Walk, node: OnnxNode, table: str, shape: tuple[int, ...]) -> Elements:
    if len(shape) != 2:
        raise DoesNotFit(f"its table has the shape {shape}; expected one row for each token")
    every_token = Rows("", 0, only_last=False)
    output, elements = walk.write(node, shape[1], (1, STEP_TOKENS, shape[1]), every_token)
    walk.ops.append(Embed(walk.label(node), table, output))
    return elements


def norm(walk: Walk, node: OnnxNode) -> list[Value]:
    """``SimplifiedLayerNormalization`` or ``RMSNormalization`` over the last axis."""
    known_attributes(node, "epsilon", "axis", "stash_type")
    source = walk.elements(node, 0)
    axis = attribute(node, "axis", int, -1)
    if axis not in (-1, source.numbers.ndim - 1) or any(node.outputs[1:]):
        raise DoesNotFit("it normalises over several axes, or its second output is used")
    return [_normalised(walk, node, source, walk.weight(node, 1), attribute(node, "epsilon", float, 1e-5))]


def skip_norm(walk: Walk, node: OnnxNode) -> list[Value]:
    """``SkipSimplifiedLayerNormalization``: a sum, and its norm."""
    known_attributes(node, "epsilon")
    if walk.operand(node, 3) is not None:
        raise DoesNotFit("it has a bias")
    if any(node.outputs[1:3]):
        raise DoesNotFit("its outputs 1 or 2, which only training has, are used")
    total = _sum(walk, node, walk.elements(node, 0), walk.elements(node, 1))
    epsilon = attribute(node, "epsilon", float, 1e-12)
    return [_normalised(walk, node, total, walk.weight(node, 2), epsilon), total, total, total]


def _normalised(walk: Walk, node: OnnxNode, source: Elements, weight: OnnxTensor, epsilon: float) -> Elements:
    group = source.numbers.shape[-1]
    if weight.shape != (group,):
        raise DoesNotFit(f"its weight has the shape {weight.shape}; expected ({group},)")
    if not 0 <= epsilon <= 0.1:
        raise DoesNotFit(f"its epsilon is {epsilon}")
    rows = walk.rows_of(source)
    if rows.width % group:
        raise DoesNotFit(f"it normalises groups of {group} out of {rows.width} features")
    output, elements = walk.write(node, rows.width, source.numbers.shape, rows, "normalised")
    weight_name = walk.take(float_tensor(weight))
    walk.ops.append(RMSNorm(walk.label(node), rows.buffer, weight_name, output, epsilon, group))
    return elements


def add(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Add`` of two activations, of a bias to a linear, or of epsilon in a norm's formula."""
    known_attributes(node)
    left, right = walk.operand(node, 0), walk.operand(node, 1)
    if isinstance(left, Elements) and isinstance(right, Elements):
        return [_sum(walk, node, left, right)]
    for place, (value, other) in enumerate(((left, right), (right, left))):
        if isinstance(value, Expression) and value.kind == "mean square" and as_known(other) is not None:
            return [replace(value, epsilon=value.epsilon + walk.scalar(node, 1 - place))]
        if isinstance(value, Elements) and isinstance(other, Weight):
            return [_biased(walk, node, place, value, other.tensor)]
    raise DoesNotFit(f"it adds {described(left)} and {described(right)}")


def _sum(walk: Walk, node: OnnxNode, left: Elements, right: Elements) -> Elements:
    if left.numbers.shape != right.numbers.shape:
        raise DoesNotFit(f"it adds shapes {left.numbers.shape} and {right.numbers.shape}")
    rows, others = walk.rows_of(left), walk.rows_of(right)
    if (rows.width, rows.only_last) != (others.width, others.only_last):
        raise DoesNotFit("it adds activations of different tokens or widths")
    output, elements = walk.write(node, rows.width, left.numbers.shape, rows, "sum")
    walk.ops.append(Add(walk.label(node, "sum"), rows.buffer, others.buffer, output))
    return elements


def _biased(walk: Walk, node: OnnxNode, place: int, source: Elements, bias: OnnxTensor) -> Elements:
    rows = walk.rows_of(source)
    writer = next((at for at, op in enumerate(walk.ops) if getattr(op, "output", None) == rows.buffer), None)
    op = None if writer is None else walk.ops[writer]
    if writer is None or not isinstance(op, Linear) or op.biases or not walk.used_once(node.inputs[place]):
        raise DoesNotFit("it adds a constant to something else than a linear without bias")
    if bias.elements != rows.width or source.numbers.shape[-1] != rows.width:
        raise DoesNotFit(f"its bias has the shape {bias.shape}; expected ({rows.width},)")
    flat = OnnxTensor(bias.name, bias.data_type, (rows.width,), bias.octets, bias.file)
    walk.ops[writer] = replace(op, biases=(walk.take(float_tensor(flat)),))
    return source


def sigmoid(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Sigmoid``, the first part of SiLU."""
    known_attributes(node)
    return [Expression("sigmoid", walk.elements(node, 0))]


def quick_gelu(walk: Walk, node: OnnxNode) -> list[Value]:
    """``QuickGelu`` or ``Swish`` with a factor of 1, which are SiLU."""
    known_attributes(node, "alpha")
    factor = attribute(node, "alpha", float, 1.702 if node.op_type == "QuickGelu" else 1.0)
    if factor != 1.0:
        raise DoesNotFit(f"its factor is {factor}; nybble runs models with SiLU, whose factor is 1")
    return [Expression("silu", walk.elements(node, 0))]


def multiply(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Mul``: of SiLU, of a gate, or of a norm's formula."""
    known_attributes(node)
    left, right = walk.operand(node, 0), walk.operand(node, 1)
    for value, other in ((left, right), (right, left)):
        match value, other:
            case Expression("sigmoid"), Elements() if _equal(value.operand, other):
                return [Expression("silu", other)]
            case Expression("silu"), Elements():
                return [_gated(walk, node, value.operand, other)]
            case Expression("normalised"), Weight():
                return [_normalised(walk, node, value.operand, other.tensor, value.epsilon)]
            case Expression("reciprocal root"), Elements() if _equal(value.operand, other):
                return [replace(value, kind="normalised")]
    if isinstance(left, Elements) and isinstance(right, Elements) and _equal(left, right):
        return [Expression("square", left)]
    raise DoesNotFit(f"it multiplies {described(left)} with {described(right)}")


def _gated(walk: Walk, node: OnnxNode, gate: Elements, up: Elements) -> Elements:
    gate_rows, up_rows = walk.rows_of(gate), walk.rows_of(up)
    if gate.numbers.shape != up.numbers.shape or gate_rows.only_last != up_rows.only_last:
        raise DoesNotFit(f"it multiplies shapes {gate.numbers.shape} and {up.numbers.shape}")
    output, elements = walk.write(node, gate_rows.width, gate.numbers.shape, gate_rows)
    walk.ops.append(SwiGLU(walk.label(node), gate_rows.buffer, up_rows.buffer, output))
    return elements


def power(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Pow`` in a norm's formula: x² or 1/√x."""
    known_attributes(node)
    exponent, value = walk.scalar(node, 1), walk.operand(node, 0)
    if isinstance(value, Elements) and exponent == 2:
        return [Expression("square", value)]
    if isinstance(value, Expression) and value.kind == "mean square" and exponent in (0.5, -0.5):
        return [replace(value, kind="root" if exponent > 0 else "reciprocal root")]
    raise DoesNotFit(f"it raises {described(value)} to the power {exponent}")


def reduce_mean(walk: Walk, node: OnnxNode) -> list[Value]:
    """``ReduceMean`` over the last axis, of squares."""
    known_attributes(node, "axes", "keepdims", "noop_with_empty_axes")
    value = walk.operand(node, 0)
    axes = walk.known(node, 1).reshape(-1).tolist() if len(node.inputs) > 1 else node.attributes.get("axes")
    if not isinstance(value, Expression) or value.kind != "square":
        raise DoesNotFit(f"it takes the mean of {described(value)}; nybble knows the mean of squares in a norm")
    if axes not in ([-1], [value.operand.numbers.ndim - 1]) or attribute(node, "keepdims", int, 1) != 1:
        raise DoesNotFit(f"it takes the mean over the axes {axes}; expected the last, kept")
    return [replace(value, kind="mean square")]


def root(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Sqrt`` in a norm's formula."""
    return _of_a_norm(walk, node, "mean square", "root")


def reciprocal(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Reciprocal`` in a norm's formula."""
    return _of_a_norm(walk, node, "root", "reciprocal root")


def _of_a_norm(walk: Walk, node: OnnxNode, before: str, after: str) -> list[Value]:
    """The expression ``after`` of an operand that is the expression ``before``."""
    known_attributes(node)
    value = walk.operand(node, 0)
    if not isinstance(value, Expression) or value.kind != before:
        taken = after.split()[0]
        raise DoesNotFit(f"it takes the {taken} of {described(value)}; nybble knows that of the {before} in a norm")
    return [replace(value, kind=after)]


def divide(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Div`` in a norm's formula: x/√…, or 1/√…."""
    known_attributes(node)
    left, right = walk.operand(node, 0), walk.operand(node, 1)
    if isinstance(right, Expression) and right.kind == "root":
        if isinstance(left, Elements) and _equal(left, right.operand):
            return [replace(right, kind="normalised")]
        if as_known(left) is not None and walk.scalar(node, 0) == 1:
            return [replace(right, kind="reciprocal root")]
    raise DoesNotFit(f"it divides {described(left)} by {described(right)}")


def cast(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Cast`` of what is an activation or weight: nybble computes activations in fp32 whatever the graph says."""
    known_attributes(node, "to", "saturate")
    target = attribute(node, "to", int, 0)
    value = walk.operand(node, 0)
    floats = (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE)
    if isinstance(value, Tokens) and target in (DataType.INT32, DataType.INT64):
        return [value]
    if isinstance(value, Elements | Expression) and target in floats:
        return [value]
    raise DoesNotFit(f"it turns {described(value)} into type {target}")


def shape(node: OnnxNode, found: tuple[int, ...]) -> list[Value]:
    """``Shape`` or ``Size`` of a value of the shape ``found``."""
    known_attributes(node, "start", "end")
    if node.op_type == "Size":
        return [Known(np.array(int(np.prod(found)), np.int64))]
    return [Known(np.array(found[attribute(node, "start", int, 0) : attribute(node, "end", int, None)], np.int64))]


def _equal(left: Elements, right: Elements) -> bool:
    return left is right or np.array_equal(left.numbers, right.numbers)
