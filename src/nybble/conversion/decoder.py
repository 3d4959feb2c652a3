"""From a decoder's graph to ONNX nodes, in the form that ONNX Runtime GenAI's model builder gives a decoder.

Operators of ``com.microsoft``: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..formats.onnx_accuracy_level import INT8_LEVEL
from ..formats.onnx_model import MAT_MUL_N_BITS, MICROSOFT, DataType
from ..formats.onnx_writer import Attribute, GraphWriter
from ..graph.graph import Graph
from ..graph.ops import Add, Attention, Embed, KVAppend, Linear, Op, RMSNorm, Rope, SwiGLU
from ..quant.blocks import dequantise
from ..quant.packing_rules import packed_as
from ..quant.quantise import quantised
from ..quant.storage import StorageType
from .blocked import blocked_matrix, is_requantised

OPSETS = {"": 21, MICROSOFT: 1}
PAST, PRESENT = "past_key_values.{}.{}", "present.{}.{}"
_FLOATS = {
    StorageType.F32: DataType.FLOAT,
    StorageType.F16: DataType.FLOAT16,
    StorageType.BF16: DataType.BFLOAT16,
}


@dataclass(frozen=True, slots=True)
class _Quantised:
    """A quantised matrix that is written: its form, and the names of codes, scales and perhaps zero points."""

    bits: int
    block: int
    names: tuple[str, ...]


class DecoderWriter:
    """Writes the ops of a graph that no pass has changed; buffers keep their names.

    Tensors with offsets are rounded to 8 bits (``requantised``) if asked to ``requantise``, and those of more than 4
    bits always; others get float zero points (``float_zero_points``), and embeddings among them become fp32
    (``widened``).
    """

    def __init__(self, graph: Graph, writer: GraphWriter, *, requantise: bool) -> None:
        self.requantised: list[str] = []
        self.float_zero_points: list[str] = []
        self.widened: list[str] = []
        self._requantise = requantise
        self._graph = graph
        self._writer = writer
        self._matrices: dict[str, _Quantised] = {}
        self._fused: set[str] = set()
        self._unrotated: dict[str, str] = {}
        self._appended: dict[int, KVAppend] = {}

    def write(self, release: Callable[[], None]) -> None:
        """Declare inputs and outputs, and write every node and tensor; ``release`` is called after each layer."""
        self._declare()
        self._lengths()
        self._rotation_tables()
        ops = self._graph.ops
        for op, following in zip(ops, (*ops[1:], None), strict=True):
            self._op(op, following)
            if isinstance(op, Attention):
                release()

    def _op(self, op: Op, following: Op | None) -> None:
        match op:
            case Embed():
                self._embed(op)
            case Linear():
                self._linear(op)
            case RMSNorm():
                self._norm(op)
            case Rope():
                self._unrotated[op.output] = op.input
            case KVAppend():
                self._appended[op.layer] = op
            case Attention():
                self._attention(op)
            case SwiGLU():
                sigmoid, silu = f"{op.output}.sigmoid", f"{op.output}.silu"
                self._node("Sigmoid", [op.gate], sigmoid)
                self._node("Mul", [op.gate, sigmoid], silu)
                self._node("Mul", [silu, op.up], op.output)
            case Add():
                self._add(op, following)
            case _:
                raise TypeError(f"{op.label}: {type(op).__name__} is no op of a graph that no pass has changed")

    def _declare(self) -> None:
        graph, writer = self._graph, self._writer
        writer.input("input_ids", DataType.INT64, ["batch", "tokens"])
        writer.input("attention_mask", DataType.INT64, ["batch", "all_tokens"])
        writer.output(graph.logits, DataType.FLOAT, ["batch", "tokens", graph.vocabulary])
        for layer in range(graph.layers):
            for part in ("key", "value"):
                for declare, name, tokens in (
                    (writer.input, PAST, "past_tokens"),
                    (writer.output, PRESENT, "all_tokens"),
                ):
                    shape = ("batch", graph.kv_heads, tokens, graph.head_dim)
                    declare(name.format(layer, part), DataType.FLOAT, shape)

    def _lengths(self) -> None:
        """What GroupQueryAttention is told: the last position of each sequence, and the number of all tokens."""
        writer = self._writer
        one, place = writer.constant("one", np.array([1])), writer.constant("tokens_axis", np.array(1))
        self._node("ReduceSum", ["attention_mask", one], "token_counts", keepdims=0)
        self._node("Sub", ["token_counts", one], "last_positions.wide")
        self._node("Cast", ["last_positions.wide"], "last_positions", to=int(DataType.INT32))
        self._node("Shape", ["attention_mask"], "mask_shape")
        self._node("Gather", ["mask_shape", place], "all_tokens.wide", axis=0)
        self._node("Cast", ["all_tokens.wide"], "all_tokens", to=int(DataType.INT32))

    def _rotation_tables(self) -> None:
        angles = np.arange(self._graph.context_length)[:, None] * self._graph.inverse_frequencies
        self._writer.constant("cosines", np.cos(angles).astype("<f4"))
        self._writer.constant("sines", np.sin(angles).astype("<f4"))

    def _embed(self, op: Embed) -> None:
        tensor = self._graph.tensors[op.table]
        storage = tensor.packed_from
        if storage.is_float:
            rows = self._node("Gather", [self._float(op.table), "input_ids"], f"{op.output}.stored", axis=0)
            self._node("Cast", [rows], op.output, to=int(DataType.FLOAT))
            return
        if packed_as(storage).has_offsets and not is_requantised(storage, self._requantise):
            # GatherBlockQuantized knows whole zero points only.
            self.widened.append(op.table)
            table = self._writer.constant(f"{op.table}.widened", dequantise(tensor))
            self._node("Gather", [table, "input_ids"], op.output, axis=0)
            return
        matrix = self._quantised(op.table)
        vocabulary, width = tensor.shape
        shape = self._writer.constant(f"{op.table}.shape", np.array([vocabulary, width * matrix.bits // 8]))
        codes = self._node("Reshape", [matrix.names[0], shape], f"{op.table}.table")
        attributes = {"bits": matrix.bits, "block_size": matrix.block, "gather_axis": 0, "quantize_axis": 1}
        self._node("GatherBlockQuantized", [codes, "input_ids", matrix.names[1]], op.output, MICROSOFT, **attributes)

    def _linear(self, op: Linear) -> None:
        (weight,) = op.weights
        tensor = self._graph.tensors[weight]
        n, k = tensor.shape
        bias = "" if not op.biases else self._vector(op.biases[0])
        if tensor.packed_from.is_float:
            stored = self._float(weight)
            wide, turned = f"{op.output}.weight", f"{op.output}.turned"
            self._node("Cast", [stored], wide, to=int(DataType.FLOAT))
            self._node("Transpose", [wide], turned, perm=[1, 0])
            product = f"{op.output}.product" if bias else op.output
            self._node("MatMul", [op.input, turned], product)
            if bias:
                self._node("Add", [product, bias], op.output)
            return
        matrix = self._quantised(weight)
        inputs = [op.input, *matrix.names, *[""] * (4 - len(matrix.names)), bias]
        sizes = {"K": k, "N": n, "bits": matrix.bits, "block_size": matrix.block}
        self._node(MAT_MUL_N_BITS, inputs, op.output, MICROSOFT, **sizes, accuracy_level=INT8_LEVEL)

    def _norm(self, op: RMSNorm) -> None:
        if op.output in self._fused:
            return
        width = self._graph.buffers[op.input].width
        source, output = op.input, op.output
        if op.group < width:
            heads = self._writer.constant(f"heads_of_{op.group}", np.array([0, -1, op.group]))
            source = self._node("Reshape", [op.input, heads], f"{op.output}.heads")
            output = f"{op.output}.normalised"
        inputs = [source, self._vector(op.weight)]
        self._node("SimplifiedLayerNormalization", inputs, output, axis=-1, epsilon=op.epsilon, stash_type=1)
        if op.group < width:
            whole = self._writer.constant(f"rows_of_{width}", np.array([0, -1, width]))
            self._node("Reshape", [output, whole], op.output)

    def _add(self, op: Add, following: Op | None) -> None:
        if not isinstance(following, RMSNorm) or following.input != op.output:
            self._node("Add", [op.left, op.right], op.output)
            return
        self._fused.add(following.output)
        inputs = [op.left, op.right, self._vector(following.weight)]
        outputs = [following.output, "", "", op.output]
        self._writer.node("SkipSimplifiedLayerNormalization", inputs, outputs, MICROSOFT, epsilon=following.epsilon)

    def _attention(self, op: Attention) -> None:
        appended = self._appended[op.layer]
        inputs = [self._unrotated[op.query], self._unrotated[appended.key], appended.value]
        inputs += [PAST.format(op.layer, part) for part in ("key", "value")]
        inputs += ["last_positions", "all_tokens", "cosines", "sines"]
        outputs = [op.output, *(PRESENT.format(op.layer, part) for part in ("key", "value"))]
        attributes: dict[str, Attribute] = {
            "num_heads": op.heads,
            "kv_num_heads": op.kv_heads,
            "scale": op.scale,
            "do_rotary": 1,
            "rotary_interleaved": 0,
        }
        self._writer.node("GroupQueryAttention", inputs, outputs, MICROSOFT, **attributes)

    def _node(self, op_type: str, inputs: list[str], output: str, domain: str = "", **attributes: Attribute) -> str:
        self._writer.node(op_type, inputs, [output], domain, **attributes)
        return output

    def _quantised(self, name: str) -> _Quantised:
        """The initialisers of a quantised tensor, written when first asked for."""
        if name not in self._matrices:
            tensor = quantised(self._graph.tensors[name])
            rounded = is_requantised(tensor.storage, self._requantise)
            matrix = blocked_matrix(tensor, requantise=rounded)
            if rounded:
                self.requantised.append(name)
            names = [self._writer.constant(f"{name}.codes", matrix.codes)]
            names.append(self._writer.constant(f"{name}.scales", matrix.scales))
            if matrix.zero_points is not None:
                self.float_zero_points.append(name)
                names.append(self._writer.constant(f"{name}.zero_points", matrix.zero_points))
            self._matrices[name] = _Quantised(matrix.bits, matrix.block, tuple(names))
        return self._matrices[name]

    def _float(self, name: str) -> str:
        """An initialiser of floats as they are stored."""
        tensor = self._graph.tensors[name]
        assert isinstance(tensor.storage, StorageType)
        octets = np.ascontiguousarray(tensor.rows).reshape(-1)
        return self._writer.tensor(name, _FLOATS[tensor.storage], tensor.shape, octets)

    def _vector(self, name: str) -> str:
        """An initialiser of a norm's or bias's floats as fp32."""
        return self._writer.constant(name, dequantise(self._graph.tensors[name]))
