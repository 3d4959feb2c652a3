"""``MatMulNBits`` as ``DequantizeLinear`` and ``MatMul`` (the QDQ form, opset 21), and back, with the same weights.

Layouts: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits and
https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, UnsupportedFeature
from ..formats.onnx_accuracy_level import INT8_LEVEL
from ..formats.onnx_model import MAT_MUL_N_BITS, MICROSOFT, DataType, OnnxNode, OnnxTensor
from ..formats.onnx_rewriter import ModelRewriter
from ..formats.onnx_writer import NewNode
from ..models.onnx.movement import DoesNotFit, attribute
from ..models.onnx.weights import BLOCKS, blocked_tensor, dequantised_tensor
from ..quant.storage import SeparateStorage, ZeroPoints
from ..quant.tensor import Tensor
from ..quant.unpack import unpack_rows

OLDEST_OPSET = 21
"""The first in which ``DequantizeLinear`` has blocks."""
_TYPES = {(4, True): DataType.INT4, (4, False): DataType.UINT4, (8, True): DataType.INT8, (8, False): DataType.UINT8}


def to_qdq(source: Path, target: Path) -> int:
    """Write the ONNX model ``source`` to ``target`` with every ``MatMulNBits`` as ``DequantizeLinear`` and ``MatMul``.

    Large weights go into a new file beside ``target``. Returns the number of nodes.
    Raises :class:`UnsupportedFeature` for a model of an opset before 21, and for a node with 2 bits, float zero points
    or ``g_idx``; :class:`ModelFileError` if there is no ``MatMulNBits``.
    """
    rewriter = ModelRewriter(source, target)
    model = rewriter.model
    nodes = [node for node in model.nodes if node.is_mat_mul_n_bits]
    if not nodes:
        raise ModelFileError(source, "", "has no com.microsoft::MatMulNBits node; nothing to convert")
    if model.opsets.get("", 0) < OLDEST_OPSET:
        raise UnsupportedFeature(
            f"{source}: is of opset {model.opsets.get('', 0)}; DequantizeLinear has blocks since {OLDEST_OPSET}. "
            "Export the model anew with that opset"
        )
    with rewriter:
        for node in nodes:
            try:
                _decode_before_use(rewriter, node)
            except DoesNotFit as problem:
                raise UnsupportedFeature(f"{source}: {node}: {problem}") from None
    return len(nodes)


def from_qdq(source: Path, target: Path) -> int:
    """Write the ONNX model ``source`` to ``target`` with ``MatMulNBits`` for each ``MatMul`` of a weight in blocks that
    ``DequantizeLinear`` decodes; ``accuracy_level`` is 4, with which ONNX Runtime runs such pairs.

    Large weights go into a new file beside ``target``. Returns the number of nodes. Weights of other forms (one scale
    for each output, blocks along the outputs) stay as they are.
    Raises :class:`ModelFileError` if there is no such ``MatMul``.
    """
    rewriter = ModelRewriter(source, target)
    writers = {node.outputs[0]: node for node in rewriter.model.nodes if node.outputs}
    found: list[tuple[OnnxNode, Tensor]] = []
    for node in rewriter.model.nodes:
        if (node.domain, node.op_type) == ("", "MatMul"):
            tensor = _decoded_weight(rewriter, writers, node.inputs[1])
            if tensor is not None:
                found.append((node, tensor))
    if not found:
        raise ModelFileError(
            source, "", "has no MatMul of a weight in blocks that DequantizeLinear decodes; nothing to convert"
        )
    with rewriter:
        for node, tensor in found:
            _multiply_blocks(rewriter, node, tensor)
        rewriter.import_domain(MICROSOFT)
    return len(found)


def _decode_before_use(rewriter: ModelRewriter, node: OnnxNode) -> None:
    inputs = [*node.inputs, *[""] * (6 - len(node.inputs))]
    if inputs[4]:
        raise DoesNotFit("it has g_idx, an order of the features, which the QDQ form has not")
    k, n = attribute(node, "K", int, 0), attribute(node, "N", int, 0)
    bits, block = attribute(node, "bits", int, 4), attribute(node, "block_size", int, 0)
    if bits == 2:
        raise DoesNotFit("its weights have 2 bits; the QDQ form of opset 21 has 4 and 8")
    if min(k, n) < 1:
        raise DoesNotFit(f"its K is {k} and its N is {n}; expected at least 1")
    codes, scales = (rewriter.initializer(inputs[place]) for place in (1, 2))
    points = rewriter.initializer(inputs[3]) if inputs[3] else None
    if points is not None and points.data_type is not DataType.UINT8:
        raise DoesNotFit("its zero points are floats; the QDQ form has whole ones")
    tensor = blocked_tensor(codes, scales, points, (n, k), bits, block)
    decoded, name = f"{node.outputs[0]}.weight", node.name or node.outputs[0]
    parts = _turned(rewriter, tensor, scales.data_type)
    nodes = [NewNode(f"{name}.decode", "DequantizeLinear", parts, [decoded], "", {"axis": 0, "block_size": block})]
    product = f"{node.outputs[0]}.product" if inputs[5] else node.outputs[0]
    nodes.append(NewNode(name, "MatMul", [inputs[0], decoded], [product]))
    if inputs[5]:
        nodes.append(NewNode(f"{name}.bias", "Add", [product, inputs[5]], [node.outputs[0]]))
    rewriter.replace(node, nodes)


def _turned(rewriter: ModelRewriter, tensor: Tensor, type_of_scales: DataType) -> list[str]:
    """The names of codes (K, N), scales and zero points (blocks, N) of ``tensor`` (N, K) in the form of QDQ."""
    names = [f"{tensor.name}.{part}" for part in ("decoded_codes", "decoded_scales", "decoded_zero_points")]
    storage, (n, k) = tensor.storage, tensor.shape
    assert isinstance(storage, SeparateStorage) and tensor.scales is not None
    symmetric = storage.zero_points is ZeroPoints.ABSENT
    names = names[:2] if symmetric else names
    if rewriter.has(names[0]):
        return names
    unpacked = unpack_rows(tensor, slice(0, n))
    codes = unpacked.codes[:, :k].T
    if symmetric:
        codes = codes ^ np.uint8(1 << (storage.bits - 1))  # two's complement of the code less half the range
    kind = _TYPES[storage.bits, symmetric]
    rewriter.add(names[0], kind, (k, n), _packed(codes, storage.bits))
    scales = tensor.scales.view(f"<u{storage.scales.block_bytes}").T
    rewriter.add(names[1], type_of_scales, scales.shape, np.ascontiguousarray(scales).reshape(-1).view(np.uint8))
    if not isinstance(unpacked.zero_point, int):
        points = unpacked.zero_point.astype(np.uint8).T
        rewriter.add(names[2], kind, points.shape, _packed(points, storage.bits))
    return names


def _packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """One code per byte, in any shape, to the bytes of a tensor: low bits first, without padding between rows."""
    flat = np.ascontiguousarray(codes).reshape(-1)
    if bits == 8:
        return flat
    flat = np.pad(flat, (0, len(flat) % 2))
    packed: NDArray[np.uint8] = flat[::2] | flat[1::2] << np.uint8(4)
    return packed


def _decoded_weight(rewriter: ModelRewriter, writers: dict[str, OnnxNode], name: str) -> Tensor | None:
    """The matrix (N, K) that the value ``name`` (K, N) is decoded from; None if it has not the form of MatMulNBits."""
    node = writers.get(name)
    transposed = node is not None and node.op_type == "Transpose" and node.attributes.get("perm", [1, 0]) == [1, 0]
    if node is not None and transposed:
        node = writers.get(node.inputs[0])
    tensors = rewriter.model.initializers
    if node is None or node.op_type != "DequantizeLinear" or not all(part in tensors for part in node.inputs):
        return None
    parts: list[OnnxTensor | None] = [tensors[part] for part in node.inputs]
    codes, scales, points = (*parts, None)[:3]
    axis, block = attribute(node, "axis", int, 1), attribute(node, "block_size", int, 0)
    if codes is None or scales is None or block not in BLOCKS or codes.data_type.bits not in (4, 8):
        return None
    try:
        return dequantised_tensor(codes, scales, points, axis, block, transposed)
    except DoesNotFit:
        return None


def _multiply_blocks(rewriter: ModelRewriter, node: OnnxNode, tensor: Tensor) -> None:
    storage, (n, k) = tensor.storage, tensor.shape
    assert isinstance(storage, SeparateStorage) and tensor.scales is not None
    names = [f"{tensor.name}.{part}" for part in ("blocked_codes", "blocked_scales", "blocked_zero_points")]
    if not rewriter.has(names[0]):
        blocks = -(-k // storage.block)
        rewriter.add(names[0], DataType.UINT8, (n, blocks, tensor.rows.shape[1] // blocks), tensor.rows.reshape(-1))
        type_of_scales = DataType[{"F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16"}[storage.scales.name]]
        rewriter.add(names[1], type_of_scales, (n, blocks), tensor.scales.reshape(-1))
        if tensor.zero_points is not None:
            rewriter.add(names[2], DataType.UINT8, tensor.zero_points.shape, tensor.zero_points.reshape(-1))
    inputs = [node.inputs[0], *(names if tensor.zero_points is not None else names[:2])]
    sizes = {"K": k, "N": n, "bits": storage.bits, "block_size": storage.block, "accuracy_level": INT8_LEVEL}
    name = node.name or node.outputs[0]
    rewriter.replace(node, [NewNode(name, MAT_MUL_N_BITS, inputs, node.outputs, MICROSOFT, sizes)])
