"""From the initialisers of an ONNX node to the tensor they mean, in the storage types of :mod:`nybble.quant`.

Layouts: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md (MatMulNBits,
GatherBlockQuantized) and https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...formats.onnx_model import DataType, OnnxTensor
from ...quant.storage import SeparateStorage, StorageType, ZeroPoints
from ...quant.tensor import Tensor
from .movement import DoesNotFit

FLOATS: Mapping[DataType, StorageType] = {
    DataType.FLOAT: StorageType.F32,
    DataType.FLOAT16: StorageType.F16,
    DataType.BFLOAT16: StorageType.BF16,
}
BLOCKS = (16, 32, 64, 128, 256)
_SIGNED = (DataType.INT2, DataType.INT4, DataType.INT8)
_CODES = (DataType.UINT2, DataType.UINT4, DataType.UINT8, *_SIGNED)


def float_tensor(source: OnnxTensor, transposed: bool = False) -> Tensor:
    """A float initialiser as a tensor; ``transposed`` copies a matrix of (K, N) into one of (N, K)."""
    storage = FLOATS.get(source.data_type)
    if storage is None:
        raise DoesNotFit(f"{source.name} is {source.data_type.name}; expected FLOAT, FLOAT16 or BFLOAT16")
    if 0 in source.shape or not 1 <= len(source.shape) <= 2:
        raise DoesNotFit(f"{source.name} has the shape {source.shape}; expected a vector or a matrix")
    width = storage.block_bytes
    elements = source.octets.view(f"<u{width}").reshape(source.shape)
    if transposed:
        elements = np.ascontiguousarray(elements.T)
    rows = elements.reshape(-1, elements.shape[-1]).view(np.uint8)
    return Tensor(source.name, storage, elements.shape, rows, source.file)


def blocked_tensor(
    codes: OnnxTensor, scales: OnnxTensor, zero_points: OnnxTensor | None, shape: tuple[int, int], bits: int, block: int
) -> Tensor:
    """The matrix (N, K) of ``shape`` of MatMulNBits: its ``codes``, low bits first, lie in whole blocks along K.

    ``scales`` are (N · blocks) floats, ``zero_points`` packed codes padded to bytes in each row, floats like the
    scales, or None for 2^(bits - 1). Both may be 1-D or 2-D.
    """
    n, k = shape
    if bits not in (2, 4, 8):
        raise DoesNotFit(f"its weights have {bits} bits; nybble runs 2, 4 and 8")
    if block not in BLOCKS:
        raise DoesNotFit(f"its block size is {block}; nybble runs {', '.join(map(str, BLOCKS))}")
    storage_of_scales = FLOATS.get(scales.data_type)
    if storage_of_scales is None:
        raise DoesNotFit(f"{scales.name} is {scales.data_type.name}; expected FLOAT, FLOAT16 or BFLOAT16")
    if codes.data_type is not DataType.UINT8:
        raise DoesNotFit(f"{codes.name} is {codes.data_type.name}; expected UINT8")
    kind = ZeroPoints.ABSENT
    if zero_points is not None:
        if zero_points.data_type is DataType.UINT8:
            kind = ZeroPoints.PACKED
        elif zero_points.data_type is scales.data_type:
            kind = ZeroPoints.FLOAT
        else:
            raise DoesNotFit(
                f"{zero_points.name} is {zero_points.data_type.name}; expected UINT8, or {scales.data_type.name} as "
                "the scales"
            )
    storage = SeparateStorage(bits, block, storage_of_scales, kind)
    needed = storage.row_bytes(k)
    return Tensor(
        codes.name,
        storage,
        (n, k),
        _rows(codes, n, needed[0], shape),
        codes.file,
        _rows(scales, n, needed[1], shape),
        None if zero_points is None else _rows(zero_points, n, needed[2], shape),
    )


def dequantised_tensor(
    codes: OnnxTensor, scales: OnnxTensor, zero_points: OnnxTensor | None, axis: int, block: int, transposed: bool
) -> Tensor:
    """The matrix (N, K) that ``DequantizeLinear`` decodes, its codes put into the order of :func:`blocked_tensor`.

    ``codes`` are a matrix (N, K), or (K, N) where it is used as it is and not ``transposed``. ``axis`` is that of the
    blocks, or, with a ``block`` of 0, that of one scale for each index (none: a single scale). Copies.
    """
    if codes.data_type not in _CODES or len(codes.shape) != 2 or 0 in codes.shape:
        raise DoesNotFit(f"{codes.name} is {codes.data_type.name} of shape {codes.shape}; expected a matrix of codes")
    if scales.data_type not in FLOATS:
        raise DoesNotFit(f"{scales.name} is {scales.data_type.name}; expected FLOAT, FLOAT16 or BFLOAT16")
    bits = codes.data_type.bits
    lifted = _lifted(codes)
    matrix = lifted if transposed else np.ascontiguousarray(lifted.T)
    n, k = matrix.shape
    along_k = 1 if transposed else 0
    if block:
        if axis % 2 != along_k:
            raise DoesNotFit(f"{codes.name} has its blocks along the outputs; nybble runs blocks along the features")
        if block not in BLOCKS:
            raise DoesNotFit(f"its block size is {block}; nybble runs {', '.join(map(str, BLOCKS))}")
        size = block
    else:
        if scales.elements != 1 and (scales.elements != n or axis % 2 == along_k):
            raise DoesNotFit(f"{scales.name} has {scales.elements} scales; expected one, or one for each output")
        size = -(-k // 32) * 32
    blocks = -(-k // size)
    spread_scales = _spread(scales, scales.octets.view(f"<u{scales.data_type.bits // 8}"), n, blocks, transposed)
    middle = 1 << (bits - 1)
    if zero_points is None:
        points = np.full((n, blocks), middle if codes.data_type in _SIGNED else 0, np.uint8)
    else:
        if zero_points.data_type is not codes.data_type:
            raise DoesNotFit(f"{zero_points.name} is {zero_points.data_type.name}; expected {codes.data_type.name}")
        points = _spread(zero_points, _lifted(zero_points).reshape(-1), n, blocks, transposed)
    symmetric = bool((points == middle).all())
    padded = np.zeros((n, blocks * size), np.uint8)
    padded[:, :k] = matrix
    storage = SeparateStorage(
        bits, size, FLOATS[scales.data_type], ZeroPoints.ABSENT if symmetric else ZeroPoints.PACKED
    )
    return Tensor(
        codes.name,
        storage,
        (n, k),
        _packed(padded, bits),
        codes.file,
        spread_scales.view(np.uint8).reshape(n, -1),
        None if symmetric else _packed(points, bits),
    )


def unsigned_codes(codes: OnnxTensor, bits: int) -> OnnxTensor:
    """Codes of any width and sign as the bytes of unsigned ones, zero at 2^(bits - 1) where they were signed.

    Views what is unsigned already. The shape is then that of the bytes, (N, bytes of a row).
    """
    if codes.data_type is DataType.UINT8:
        return codes
    if codes.data_type not in _CODES or codes.data_type.bits != bits or len(codes.shape) != 2:
        raise DoesNotFit(
            f"{codes.name} is {codes.data_type.name} of shape {codes.shape}; expected codes of {bits} bits"
        )
    rows = codes.octets if codes.data_type not in _SIGNED else _packed(_lifted(codes), bits).reshape(-1)
    return OnnxTensor(codes.name, DataType.UINT8, (codes.shape[0], len(rows) // codes.shape[0]), rows, codes.file)


def _rows(tensor: OnnxTensor, n: int, row_bytes: int, shape: tuple[int, int]) -> NDArray[np.uint8]:
    if len(tensor.octets) != n * row_bytes:
        raise DoesNotFit(
            f"{tensor.name} has {len(tensor.octets)} bytes; {shape[0]} outputs of {shape[1]} features need "
            f"{n * row_bytes}"
        )
    return tensor.octets.reshape(n, row_bytes)


def _lifted(codes: OnnxTensor) -> NDArray[np.uint8]:
    """One code per byte in its shape, signed ones moved up by 2^(bits - 1) so that all are unsigned."""
    bits = codes.data_type.bits
    if bits == 8:
        unsigned = codes.octets
    else:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        unsigned = ((codes.octets[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[: codes.elements]
    if codes.data_type in _SIGNED:
        unsigned = unsigned ^ np.uint8(1 << (bits - 1))  # two's complement: flipping the sign bit adds half the range
    return unsigned.reshape(codes.shape)


def _packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Rows of one code per byte to rows of packed ones, low bits first, each padded to whole bytes."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    each = 8 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each)))
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(padded.reshape(len(codes), -1, each) << shifts, axis=2)
    return packed


def _spread(
    source: OnnxTensor, values: NDArray[np.unsignedinteger], n: int, blocks: int, transposed: bool
) -> NDArray[np.unsignedinteger]:
    """Scales or zero points as (N, blocks), from one for all, one for each output, or one for each block."""
    if values.size == 1:
        return np.ascontiguousarray(np.broadcast_to(values.reshape(1, 1), (n, blocks)))
    expected = (n, blocks) if transposed else (blocks, n)
    if values.size != n * blocks or source.shape not in (expected, (values.size,)):
        raise DoesNotFit(f"{source.name} has the shape {source.shape}; expected {expected}")
    return np.ascontiguousarray(values.reshape(expected) if transposed else values.reshape(expected).T)
