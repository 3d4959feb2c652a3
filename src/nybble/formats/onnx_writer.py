"""Writing an ONNX model: nodes and declarations on the wire, large weights into a file beside it.

Messages: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from .onnx_edit import EXTERNAL, write_pieces
from .onnx_model import DataType
from .protobuf import WireType
from .protobuf_edit import Piece, length_field, text_field, varint_bytes, varint_field
from .whole_file import WholeFile

LARGEST_INLINE = 4096
"""Bytes of a tensor that still lies in the model's own file."""
ALIGNMENT = 4096
"""Of tensors in the file of weights: the page that a runtime maps begins where the tensor does."""
IR_VERSION = 10
_FLOAT, _INT, _TEXT, _INTS = 1, 2, 3, 7  # AttributeProto.AttributeType

Attribute = float | int | str | Sequence[int]
Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to be written. An input that is not given is "", an output nobody wants as well."""

    name: str
    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    domain: str = ""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def message(self) -> list[Piece]:
        """The ``NodeProto``; inputs behind the last one given are left out."""
        given = list(self.inputs)
        while given and not given[-1]:
            del given[-1]
        message: list[Piece] = [text_field(1, edge) for edge in given]
        message += [text_field(2, edge) for edge in self.outputs]
        message += [text_field(3, self.name), text_field(4, self.op_type)]
        for key, value in self.attributes.items():
            message += length_field(5, [text_field(1, key), *_attribute_value(value)])
        if self.domain:
            message.append(text_field(7, self.domain))
        return message


class WeightsFile:
    """The file that large tensors lie in, in the folder of its model. A context: ``path`` appears on leaving it without
    an error, unless there is nothing in it."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._new = WholeFile(path)
        self._file = self._new.file

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._new.close(is_wanted=error is None and self._file.tell() > 0)

    def tensor(self, name: str, data_type: DataType, shape: Sequence[int], octets: NDArray[np.uint8]) -> list[Piece]:
        """A ``TensorProto`` of ``octets``, uint8 (bytes,), which are written now if they are many."""
        message: list[Piece] = [varint_field(1, extent) for extent in shape]
        message += [varint_field(2, data_type), text_field(8, name)]
        if len(octets) <= LARGEST_INLINE:
            return [*message, *length_field(9, [octets.tobytes()])]
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        place = {"location": self._name, "offset": str(self._file.tell()), "length": str(len(octets))}
        self._file.write(octets.data)
        for key, value in place.items():
            message += length_field(13, [text_field(1, key), text_field(2, value)])
        return [*message, varint_field(14, EXTERNAL)]


class GraphWriter:
    """Collects the parts of a graph; names are those of values."""

    def __init__(self, weights: WeightsFile) -> None:
        self._weights = weights
        self._nodes: list[Piece] = []
        self._declared: list[Piece] = []
        self._tensors: list[Piece] = []
        self._names: set[str] = set()

    def node(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Attribute
    ) -> None:
        """Append a node, named like its first output. An input that is not given is ""."""
        self._nodes += length_field(1, NewNode(outputs[0], op_type, inputs, outputs, domain, attributes).message())

    def constant(self, name: str, array: Array) -> str:
        """An initialiser of numbers of whole bytes; returns its name."""
        contiguous = np.ascontiguousarray(array)
        return self.tensor(name, _DATA_TYPES[contiguous.dtype.str], array.shape, contiguous.reshape(-1).view(np.uint8))

    def tensor(self, name: str, data_type: DataType, shape: Sequence[int], octets: NDArray[np.uint8]) -> str:
        """An initialiser of any type, from its bytes; one of that name that is there already stays."""
        if name not in self._names:
            self._names.add(name)
            self._tensors += length_field(5, self._weights.tensor(name, data_type, shape, octets))
        return name

    def input(self, name: str, data_type: DataType, shape: Sequence[int | str]) -> None:
        """Declare an input; extents that vary are given by name."""
        self._declared += length_field(11, _value_information(name, data_type, shape))

    def output(self, name: str, data_type: DataType, shape: Sequence[int | str]) -> None:
        """Declare an output."""
        self._declared += length_field(12, _value_information(name, data_type, shape))

    def write(self, path: Path, producer: str, opsets: Mapping[str, int]) -> None:
        """Make the file of the model."""
        graph = [*self._nodes, text_field(2, "decoder"), *self._tensors, *self._declared]
        model: list[Piece] = [varint_field(1, IR_VERSION), text_field(2, producer), *length_field(7, graph)]
        for domain, version in opsets.items():
            model += length_field(8, [text_field(1, domain), varint_field(2, version)])
        write_pieces(path, model)


def _attribute_value(value: Attribute) -> list[Piece]:
    if isinstance(value, float):
        return [varint_bytes(2 << 3 | WireType.FIXED32), struct.pack("<f", value), varint_field(20, _FLOAT)]
    if isinstance(value, int):
        return [varint_field(3, value), varint_field(20, _INT)]
    if isinstance(value, str):
        return [text_field(4, value), varint_field(20, _TEXT)]
    return [*(varint_field(8, number) for number in value), varint_field(20, _INTS)]


def _value_information(name: str, data_type: DataType, shape: Sequence[int | str]) -> list[Piece]:
    extents: list[Piece] = []
    for extent in shape:
        extents += length_field(1, [text_field(2, extent) if isinstance(extent, str) else varint_field(1, extent)])
    tensor_type = length_field(1, [varint_field(1, data_type), *length_field(2, extents)])
    return [text_field(1, name), *length_field(2, tensor_type)]


_DATA_TYPES: Mapping[str, DataType] = {
    "<f4": DataType.FLOAT,
    "|u1": DataType.UINT8,
    "<i8": DataType.INT64,
}
