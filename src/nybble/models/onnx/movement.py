"""Nodes that only move elements, and the arithmetic of lengths, masks and positions, executed in numpy.

Semantics: https://onnx.ai/onnx/operators
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...formats.onnx_model import DataType, OnnxNode, OnnxTensor
from .values import Array

MAXIMUM_ELEMENTS = 1 << 24
"""Of any array that is computed here: a mask over a long context has a million."""

_NUMPY_TYPES: Mapping[int, Any] = {
    DataType.FLOAT: np.float32,
    DataType.FLOAT16: np.float16,
    DataType.BFLOAT16: np.float32,
    DataType.DOUBLE: np.float64,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.BOOL: np.bool_,
    DataType.UINT8: np.uint8,
    DataType.INT8: np.int8,
}


_CONTRADICTIONS = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    TypeError,
    ValueError,
)
"""What numpy raises for operands that do not fit; inputs that are left out are None, which fits nothing."""


class DoesNotFit(Exception):
    """A node is not what it would have to be; the message says why, the walk adds which node."""


def move(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array] | None:
    """The outputs of a node that rearranges ``data``, its first input, as its other inputs say.

    None if the node is not one of those. Raises :class:`DoesNotFit` for arguments it cannot have.
    """
    mover = _MOVERS.get(node.op_type)
    if mover is None or node.domain:
        return None
    try:
        return mover(node, data, arguments)
    except _CONTRADICTIONS as error:
        raise DoesNotFit(f"its arguments contradict each other ({_one_line(error)})") from None


def compute(node: OnnxNode, inputs: Sequence[Array | None]) -> list[Array] | None:
    """The outputs of a node that computes with lengths, masks or positions; None if the node is not one of those."""
    computer = _COMPUTERS.get(node.op_type)
    if computer is None or node.domain:
        return None
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(computer(node, inputs))]
    except _CONTRADICTIONS as error:
        raise DoesNotFit(f"its inputs contradict each other ({_one_line(error)})") from None


def concatenate(node: OnnxNode, parts: Sequence[Array]) -> Array:
    """``Concat``. Raises :class:`DoesNotFit` for parts of other shapes."""
    try:
        _check_size((sum(part.size for part in parts),))
        return np.concatenate(parts, axis=attribute(node, "axis", int, None))
    except (ValueError, TypeError) as error:
        raise DoesNotFit(f"its inputs cannot be concatenated ({_one_line(error)})") from None


def attribute(node: OnnxNode, name: str, kind: type[Any], default: Any) -> Any:
    """The attribute called ``name``, checked to be of ``kind``; raises :class:`DoesNotFit` where it is another."""
    value = node.attributes.get(name, default)
    if value is not None and not isinstance(value, kind):
        raise DoesNotFit(f"its attribute {name} is a {type(value).__name__}; expected {kind.__name__}")
    return value


def known_attributes(node: OnnxNode, *names: str) -> None:
    """Raises :class:`DoesNotFit` if ``node`` has an attribute of another name: it may change what it computes."""
    for name in node.attributes:
        if name not in names:
            raise DoesNotFit(f"it has the attribute {name!r}, which nybble does not know")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _check_size(shape: Sequence[int]) -> None:
    size = 1
    for extent in shape:
        size *= max(int(extent), 0)
        if size > MAXIMUM_ELEMENTS:
            raise ValueError(f"more than {MAXIMUM_ELEMENTS} elements")


def _wholes(argument: Array | None) -> list[int]:
    if argument is None or argument.dtype.kind not in "iu" or argument.size > 64:
        raise ValueError("expected a few whole numbers")
    return [int(value) for value in argument.reshape(-1)]


def _axes(node: OnnxNode, arguments: Sequence[Array | None], place: int = 0) -> list[int]:
    """Axes come as an input since opset 13, and as an attribute before."""
    if len(arguments) > place and arguments[place] is not None:
        return _wholes(arguments[place])
    return [int(axis) for axis in attribute(node, "axes", list, None) or []]


def _reshape(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    target = _wholes(arguments[0])
    if not attribute(node, "allowzero", int, 0):
        target = [data.shape[axis] if extent == 0 else extent for axis, extent in enumerate(target)]
    return [data.reshape(target)]


def _transpose(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    return [data.transpose(attribute(node, "perm", list, None))]


def _unsqueeze(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    return [np.expand_dims(data, tuple(_axes(node, arguments)))]


def _squeeze(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    axes = _axes(node, arguments)
    return [np.squeeze(data, tuple(axes) if axes else None)]


def _expand(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    shape = np.broadcast_shapes(data.shape, tuple(_wholes(arguments[0])))
    _check_size(shape)
    return [np.broadcast_to(data, shape)]


def _tile(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    repeats = _wholes(arguments[0])
    _check_size([extent * repeat for extent, repeat in zip(data.shape, repeats, strict=True)])
    return [np.tile(data, repeats)]


def _slice(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    given = [*arguments, None, None, None, None]
    starts, ends = _wholes(given[0]), _wholes(given[1])
    axes = _wholes(given[2]) if given[2] is not None else list(range(len(starts)))
    steps = _wholes(given[3]) if given[3] is not None else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 1:
            raise ValueError("a step below 1")
        index = [slice(None)] * data.ndim
        index[axis] = slice(start, end, step)
        data = data[tuple(index)]
    return [data]


def _gather(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    if arguments[0] is None:
        raise ValueError("no indices")
    axis = attribute(node, "axis", int, 0)
    _check_size([data.size, arguments[0].size])
    return [np.take(data, arguments[0].astype(np.int64), axis)]


def _split(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    axis = attribute(node, "axis", int, 0)
    sizes = _wholes(arguments[0]) if arguments else attribute(node, "split", list, None)
    if sizes is None:
        return list(np.array_split(data, len(node.outputs), axis))
    if sum(sizes) != data.shape[axis] or min(sizes) < 0:
        raise ValueError(f"parts of {sizes} out of {data.shape[axis]}")
    return list(np.split(data, np.cumsum(sizes)[:-1], axis))


def _flatten(node: OnnxNode, data: Array, arguments: Sequence[Array | None]) -> list[Array]:
    axis = attribute(node, "axis", int, 1)
    return [data.reshape(int(np.prod(data.shape[:axis])), -1)]


_MOVERS: Mapping[str, Callable[[OnnxNode, Array, Sequence[Array | None]], list[Array]]] = {
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Expand": _expand,
    "Tile": _tile,
    "Slice": _slice,
    "Gather": _gather,
    "Split": _split,
    "Flatten": _flatten,
    "Identity": lambda node, data, arguments: [data],
}


def _two(operation: Callable[[Any, Any], Any]) -> Callable[[OnnxNode, Sequence[Any]], Any]:
    def run(node: OnnxNode, inputs: Sequence[Any]) -> Any:
        left, right = inputs
        _check_size(np.broadcast_shapes(left.shape, right.shape))
        return operation(left, right)

    return run


def _divide(left: Any, right: Any) -> Any:
    if left.dtype.kind != "i":
        return left / right
    quotient = np.abs(left) // np.abs(right)  # ONNX rounds towards zero
    return (quotient * np.sign(left) * np.sign(right)).astype(left.dtype)


def _cast(node: OnnxNode, inputs: Sequence[Any]) -> Any:
    return inputs[0].astype(_NUMPY_TYPES[attribute(node, "to", int, 0)])


def _constant_of_shape(node: OnnxNode, inputs: Sequence[Any]) -> Any:
    shape = _wholes(inputs[0])
    _check_size(shape)
    value = attribute(node, "value", OnnxTensor, None)
    return np.full(shape, np.float32(0) if value is None else value.array().reshape(()))


def _range(node: OnnxNode, inputs: Sequence[Any]) -> Any:
    start, limit, delta = (value.reshape(()) for value in inputs)
    _check_size([int(np.ceil((limit - start) / delta))])
    return np.arange(start, limit, delta, dtype=start.dtype)


def _where(node: OnnxNode, inputs: Sequence[Any]) -> Any:
    _check_size(np.broadcast_shapes(*(value.shape for value in inputs)))
    return np.where(*inputs)


def _reduced(operation: Callable[..., Any]) -> Callable[[OnnxNode, Sequence[Any]], Any]:
    def run(node: OnnxNode, inputs: Sequence[Any]) -> Any:
        axes = _axes(node, inputs[1:])
        keep = bool(attribute(node, "keepdims", int, 1))
        result = operation(inputs[0], axis=tuple(axes) if axes else None, keepdims=keep)
        return result.astype(inputs[0].dtype)

    return run


def _cumulative_sum(node: OnnxNode, inputs: Sequence[Any]) -> Any:
    if attribute(node, "exclusive", int, 0) or attribute(node, "reverse", int, 0):
        raise ValueError("an exclusive or reverse sum")
    return np.cumsum(inputs[0], axis=int(inputs[1].reshape(())), dtype=inputs[0].dtype)


def _triangle(node: OnnxNode, inputs: Sequence[Any]) -> Any:
    diagonal = int(inputs[1].reshape(())) if len(inputs) > 1 and inputs[1] is not None else 0
    return (np.triu if attribute(node, "upper", int, 1) else np.tril)(inputs[0], diagonal)


_COMPUTERS: Mapping[str, Callable[[OnnxNode, Sequence[Any]], Any]] = {
    "Add": _two(np.add),
    "Sub": _two(np.subtract),
    "Mul": _two(np.multiply),
    "Div": _two(_divide),
    "Less": _two(np.less),
    "LessOrEqual": _two(np.less_equal),
    "Greater": _two(np.greater),
    "GreaterOrEqual": _two(np.greater_equal),
    "Equal": _two(np.equal),
    "And": _two(np.logical_and),
    "Or": _two(np.logical_or),
    "Min": _two(np.minimum),
    "Max": _two(np.maximum),
    "Not": lambda node, inputs: np.logical_not(inputs[0]),
    "Neg": lambda node, inputs: np.negative(inputs[0]),
    "Cast": _cast,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Where": _where,
    "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max),
    "CumSum": _cumulative_sum,
    "Trilu": _triangle,
}
