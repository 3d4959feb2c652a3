"""What makes a graph well formed, checked after it is built and after every pass."""

from __future__ import annotations

import math

from ..errors import NybbleError
from .graph import Buffer, Graph, buffer_written, buffers_read, tensors_read
from .ops import (
    Add,
    Attention,
    Embed,
    KVAppend,
    Linear,
    Op,
    Quantise,
    RMSNorm,
    Rope,
    RotateAppend,
    SelectOutputs,
    SwiGLU,
)

WRITES_QUANTISED = (Quantise, RMSNorm, SwiGLU)
POSITION_BOUND = (Embed, Rope, KVAppend, RotateAppend, Attention)
"""Ops that need the position or id of each token, so that their rows must be all tokens of the step."""


class GraphError(NybbleError):
    """The ops, buffers and tensors of a graph contradict each other; ``label`` is the op's, or the buffer's name."""

    def __init__(self, label: str, problem: str) -> None:
        self.label = label
        self.problem = problem
        super().__init__(f"{label}: {problem}")


def check(graph: Graph) -> Graph:
    """Return ``graph`` if it is well formed, else raise :class:`GraphError` naming the op or buffer at fault.

    Checked: every buffer is written once and before it is read; views lie inside their parents; widths agree with each
    other and with the tensors' shapes; each layer's KV cache is appended once, before its attention; rows per token
    and rows per output are not mixed; only linears read quantised buffers.
    """
    _check_sizes(graph)
    for name, buffer in graph.buffers.items():
        _check_buffer(graph, name, buffer)
    written: set[str] = set()
    appended: set[int] = set()
    for op in graph.ops:
        _check_order(graph, op, written)
        _check_rows(graph, op)
        _check_precision(graph, op)
        _check_widths(graph, op)
        _check_cache(graph, op, appended)
    for name, buffer in graph.buffers.items():
        _require((buffer.parent or name) in written, name, "is never written")
    _require(len(appended) == graph.layers, "graph", f"only {len(appended)} of {graph.layers} KV caches are appended")
    return graph


def _require(condition: bool, label: str, problem: str) -> None:
    if not condition:
        raise GraphError(label, problem)


def _check_sizes(graph: Graph) -> None:
    for name in ("vocabulary", "kv_heads", "head_dim", "context_length"):
        value = getattr(graph, name)
        _require(value >= 1, "graph", f"{name} is {value}; expected at least 1")
    _require(graph.layers >= 0, "graph", f"layers is {graph.layers}; expected at least 0")
    expected = (graph.head_dim // 2,)
    found = graph.inverse_frequencies.shape
    _require(found == expected, "graph", f"inverse_frequencies have shape {found}; expected {expected}")
    _require(graph.logits in graph.buffers, "graph", f"its logits {graph.logits!r} are not among its buffers")
    logits = graph.buffers[graph.logits]
    _require(
        logits.width == graph.vocabulary, graph.logits, f"width {logits.width}; expected {graph.vocabulary} logits"
    )
    _require(logits.quantised_block is None and logits.parent is None, graph.logits, "logits must be fp32 and no view")


def _check_buffer(graph: Graph, name: str, buffer: Buffer) -> None:
    _require(buffer.width >= 1, name, f"width is {buffer.width}; expected at least 1")
    block = buffer.quantised_block
    _require(block is None or block >= 1, name, f"quantised in blocks of {block}; expected at least 1")
    if buffer.parent is None:
        _require(buffer.offset == 0, name, f"offset {buffer.offset} without a parent")
        return
    _require(buffer.parent in graph.buffers, name, f"its parent {buffer.parent!r} does not exist")
    parent = graph.buffers[buffer.parent]
    _require(parent.parent is None, name, f"its parent {buffer.parent!r} is itself a view")
    _require(block is None and parent.quantised_block is None, name, "views of quantised buffers do not exist")
    _require(buffer.per_output == parent.per_output, name, f"per_output differs from its parent {buffer.parent!r}")
    end = buffer.offset + buffer.width
    inside = buffer.offset >= 0 and end <= parent.width
    _require(inside, name, f"features {buffer.offset}..{end} lie outside its parent's {parent.width}")


def _check_order(graph: Graph, op: Op, written: set[str]) -> None:
    for name in buffers_read(op):
        _require(name in graph.buffers, op.label, f"reads {name!r}, which is not among the buffers")
        root = graph.buffers[name].parent or name
        _require(root in written, op.label, f"reads {name!r} before anything wrote it")
    for name in tensors_read(op):
        _require(name in graph.tensors, op.label, f"reads tensor {name!r}, which does not exist")
    output = buffer_written(op)
    if output is not None:
        _require(output in graph.buffers, op.label, f"writes {output!r}, which is not among the buffers")
        _require(graph.buffers[output].parent is None, op.label, f"writes {output!r}, which is a view")
        _require(output not in written, op.label, f"writes {output!r} a second time")
        written.add(output)


def _check_rows(graph: Graph, op: Op) -> None:
    output = buffer_written(op)
    if isinstance(op, SelectOutputs):
        _require(not graph.buffers[op.input].per_output, op.label, f"its input {op.input!r} is already per output")
        _require(graph.buffers[op.output].per_output, op.label, f"its output {op.output!r} is not per output")
        return
    names = (*buffers_read(op), *(() if output is None else (output,)))
    if isinstance(op, POSITION_BOUND):
        expected, rows = False, "one row per token"
    else:
        expected = graph.buffers[names[0]].per_output
        rows = f"rows like {names[0]!r}"
    for name in names:
        _require(graph.buffers[name].per_output == expected, op.label, f"{name!r} does not have {rows}")


def _check_precision(graph: Graph, op: Op) -> None:
    for name in buffers_read(op):
        if graph.buffers[name].quantised_block is not None:
            legal = isinstance(op, Linear) and name == op.input
            _require(legal, op.label, f"reads {name!r}, which is quantised; only the input of a linear may be")
    output = buffer_written(op)
    if output is None:
        return
    quantised = graph.buffers[output].quantised_block is not None
    _require(not quantised or isinstance(op, WRITES_QUANTISED), op.label, f"cannot write {output!r} quantised")
    _require(quantised or not isinstance(op, Quantise), op.label, f"its output {output!r} is not quantised")


def _check_widths(graph: Graph, op: Op) -> None:
    def width(name: str) -> int:
        return graph.buffers[name].width

    def require_width(name: str, expected: int) -> None:
        _require(width(name) == expected, op.label, f"{name!r} has width {width(name)}; expected {expected}")

    def require_shape(name: str, expected: tuple[int, ...]) -> None:
        found = graph.tensors[name].shape
        _require(found == expected, op.label, f"tensor {name!r} has shape {found}; expected {expected}")

    match op:
        case Embed():
            shape = graph.tensors[op.table].shape
            _require(len(shape) == 2, op.label, f"table {op.table!r} has shape {shape}; expected two dimensions")
            require_width(op.output, shape[1])
        case RMSNorm():
            _require(math.isfinite(op.epsilon) and op.epsilon >= 0, op.label, f"epsilon is {op.epsilon}")
            _require(op.group >= 1, op.label, f"normalises groups of {op.group} features")
            _require(width(op.input) % op.group == 0, op.label, f"{width(op.input)} features in groups of {op.group}")
            require_shape(op.weight, (op.group,))
            require_width(op.output, width(op.input))
        case Linear():
            _check_linear(graph, op)
        case Rope():
            _check_heads(graph, op, op.head_dim)
            _require(width(op.input) % op.head_dim == 0, op.label, f"{op.input!r} is not whole heads")
            require_width(op.output, width(op.input))
        case KVAppend():
            require_width(op.key, graph.kv_heads * graph.head_dim)
            require_width(op.value, graph.kv_heads * graph.head_dim)
        case RotateAppend():
            _check_heads(graph, op, op.head_dim)
            _require(width(op.query) % op.head_dim == 0, op.label, f"{op.query!r} is not whole heads")
            require_width(op.output, width(op.query))
            require_width(op.key, graph.kv_heads * graph.head_dim)
            require_width(op.value, graph.kv_heads * graph.head_dim)
            _require(math.isfinite(op.epsilon) and op.epsilon >= 0, op.label, f"epsilon is {op.epsilon}")
            for name in (op.query_norm, op.key_norm):
                if name is not None:
                    require_shape(name, (op.head_dim,))
        case Attention():
            same = op.head_dim == graph.head_dim and op.kv_heads == graph.kv_heads
            cache = f"{graph.kv_heads} of {graph.head_dim}"
            _require(same, op.label, f"{op.kv_heads} KV heads of {op.head_dim}; the cache has {cache}")
            whole = op.heads >= 1 and op.heads % op.kv_heads == 0
            _require(whole, op.label, f"{op.heads} heads cannot share {op.kv_heads} KV heads evenly")
            _require(math.isfinite(op.scale), op.label, f"scale is {op.scale}")
            require_width(op.query, op.heads * op.head_dim)
            require_width(op.output, op.heads * op.head_dim)
        case SwiGLU():
            require_width(op.up, width(op.gate))
            require_width(op.output, width(op.gate))
        case Add():
            require_width(op.right, width(op.left))
            require_width(op.output, width(op.left))
        case SelectOutputs() | Quantise():
            require_width(op.output, width(op.input))


def _check_heads(graph: Graph, op: Op, head_dim: int) -> None:
    same = head_dim == graph.head_dim and head_dim % 2 == 0
    _require(same, op.label, f"head_dim is {head_dim}; expected the graph's {graph.head_dim}, even")


def _check_linear(graph: Graph, op: Linear) -> None:
    features = graph.buffers[op.input].width
    _require(len(op.weights) >= 1, op.label, "a linear without weights")
    matched = len(op.biases) in (0, len(op.weights))
    _require(matched, op.label, f"{len(op.biases)} biases for {len(op.weights)} weights")
    outputs = 0
    for name in op.weights:
        shape = graph.tensors[name].shape
        fits = len(shape) == 2 and shape[1] == features
        _require(fits, op.label, f"tensor {name!r} has shape {shape}; expected (outputs, {features})")
        outputs += shape[0]
    for weight, bias in zip(op.weights, op.biases, strict=False):
        shape, expected = graph.tensors[bias].shape, graph.tensors[weight].shape[:1]
        _require(shape == expected, op.label, f"tensor {bias!r} has shape {shape}; expected {expected}")
    for name in (op.output, *(() if op.residual is None else (op.residual,))):
        found = graph.buffers[name].width
        _require(found == outputs, op.label, f"{name!r} has width {found}; expected {outputs}")


def _check_cache(graph: Graph, op: Op, appended: set[int]) -> None:
    if isinstance(op, KVAppend | RotateAppend):
        _require(0 <= op.layer < graph.layers, op.label, f"layer {op.layer} of {graph.layers}")
        _require(op.layer not in appended, op.label, f"appends to the KV cache of layer {op.layer} a second time")
        appended.add(op.layer)
    elif isinstance(op, Attention):
        _require(op.layer in appended, op.label, f"reads the KV cache of layer {op.layer} before it was appended")
