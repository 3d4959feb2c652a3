"""An ONNX model as its file describes it: nodes, initialisers and what flows in and out, all views.

Messages: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, as far as running a decoder needs them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from ..quant.storage import StorageType
from ..quant.unpack import floats
from .file_identity import FileIdentity

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

MAT_MUL_N_BITS = "MatMulNBits"
"""Its matrix product of quantised weights."""


class DataType(enum.IntEnum):
    """``TensorProto.DataType``, of the types weights and shapes come in."""

    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    INT32 = 6
    INT64 = 7
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    BFLOAT16 = 16
    UINT4 = 21
    INT4 = 22
    UINT2 = 25
    INT2 = 26

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        """True for the types of scales and float weights."""
        return self in (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE)


_BITS: Mapping[DataType, int] = {
    DataType.FLOAT: 32,
    DataType.UINT8: 8,
    DataType.INT8: 8,
    DataType.INT32: 32,
    DataType.INT64: 64,
    DataType.BOOL: 8,
    DataType.FLOAT16: 16,
    DataType.DOUBLE: 64,
    DataType.BFLOAT16: 16,
    DataType.UINT4: 4,
    DataType.INT4: 4,
    DataType.UINT2: 2,
    DataType.INT2: 2,
}

_DTYPES: Mapping[DataType, str] = {
    DataType.FLOAT: "<f4",
    DataType.UINT8: "<u1",
    DataType.INT8: "<i1",
    DataType.INT32: "<i4",
    DataType.INT64: "<i8",
    DataType.BOOL: "?",
    DataType.FLOAT16: "<f2",
    DataType.DOUBLE: "<f8",
}


@dataclass(frozen=True, slots=True, eq=False)
class OnnxTensor:
    """An initialiser or constant: ``octets``, uint8 (bytes,), view the file. ``file`` is what errors call it.

    Elements narrower than a byte lie low bits first, without padding between rows.
    """

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    octets: NDArray[np.uint8]
    file: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def array(self) -> NDArray[np.generic]:
        """The elements in their own type and shape: a view, or an fp32 copy of BFLOAT16.

        Raises :class:`ModelFileError` for elements narrower than a byte.
        """
        if self.data_type is DataType.BFLOAT16:
            return floats(StorageType.BF16, self.octets).reshape(self.shape)
        if self.data_type not in _DTYPES:
            raise ModelFileError(self.file, self.name, f"is {self.data_type.name}; expected numbers of whole bytes")
        return self.octets.view(_DTYPES[self.data_type]).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Subgraph:
    """An attribute that holds a graph: never read, since no decoder nybble runs has one."""


AttributeValue = int | float | str | list[int] | list[float] | list[str] | OnnxTensor | Subgraph


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node. ``domain`` is "" for ONNX's own ops; an input or output that is left out is "". ``start`` and ``end``
    delimit the node's message in the file."""

    name: str
    domain: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    start: int
    end: int

    @property
    def operator(self) -> str:
        """``MatMul``, or ``com.microsoft::MatMulNBits`` for an op of another domain."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    @property
    def is_mat_mul_n_bits(self) -> bool:
        """Whether it is ONNX Runtime's matrix product of quantised weights."""
        return (self.domain, self.op_type) == (MICROSOFT, MAT_MUL_N_BITS)

    def __str__(self) -> str:
        name = self.name if self.name.isprintable() else repr(self.name)
        return f"node {name!r} ({self.operator})" if self.name else f"node {self.operator}"


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output of the graph. ``shape`` has None for a dimension that is not fixed; None if not said."""

    name: str
    data_type: int
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """An opened ONNX model. ``nodes`` are in file order, which is the order of execution.

    ``files`` are ``path`` and then the files that initialisers lie in besides. ``release`` tells the operating system
    that no page of them is needed in memory at the moment.
    """

    path: Path
    opsets: Mapping[str, int]
    nodes: tuple[OnnxNode, ...]
    initializers: Mapping[str, OnnxTensor]
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    metadata: Mapping[str, str]
    files: tuple[FileIdentity, ...]
    file_bytes: int
    release: Callable[[], None] = field(default=lambda: None)
