"""ONNX: the graph format of ONNX Runtime, read from the wire without copying and without the ``onnx`` package.

Messages: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from ..errors import ModelFileError, UnsupportedFeature
from .cursor import Cursor
from .mapped_file import MappedFile
from .onnx_external import ExternalFiles
from .onnx_model import OnnxModel, OnnxNode, OnnxTensor, ValueInfo
from .onnx_node import read_node
from .onnx_tensor import ExternalRange, TensorReader
from .protobuf import Field, WireType, expect, fields, number, text

MAXIMUM_NODES = 1 << 17
MAXIMUM_INITIALIZERS = 1 << 17
MAXIMUM_VALUES = 1 << 14  # inputs or outputs: two for each layer's cache
MAXIMUM_DIMENSIONS = 16


def open_onnx(path: Path) -> OnnxModel:
    """Open the ONNX model at ``path`` and the external data it names; see :mod:`nybble.formats.onnx_external`.

    Raises :class:`ModelFileError` or :class:`UnsupportedFeature`; reads no tensor's bytes.
    """
    return read_onnx(MappedFile(path))


def read_onnx(mapped: MappedFile) -> OnnxModel:
    """As :func:`open_onnx`, of a file that is mapped already."""
    return _ModelReader(mapped).read()


class _ModelReader:
    def __init__(self, mapped: MappedFile) -> None:
        self.mapped = mapped
        self.file = str(mapped.path)
        self.external = ExternalFiles(mapped.path)
        self.tensors = TensorReader(self.external)
        self.opsets: dict[str, int] = {}
        self.metadata: dict[str, str] = {}
        self.nodes: list[OnnxNode] = []
        self.initializers: dict[str, OnnxTensor] = {}
        self.inputs: list[ValueInfo] = []
        self.outputs: list[ValueInfo] = []

    def read(self) -> OnnxModel:
        graph: Cursor | None = None
        for field in fields(Cursor(self.mapped.data, self.file), "ONNX model"):
            if field.number == 7:
                if graph is not None:
                    field.content.fail("ONNX model", "has a second graph", field.start)
                graph = expect(field, WireType.LENGTH, "graph").content
            elif field.number == 8:
                self._opset(field)
            elif field.number == 14:
                self._metadata(field)
        if graph is None:
            raise ModelFileError(self.file, "", "is no ONNX model, or a truncated one: it has no graph")
        self._graph(graph)
        self._check_overlaps()
        files = (self.mapped, *self.external.files)

        def release() -> None:
            for file in files:
                file.release()

        return OnnxModel(
            path=self.mapped.path,
            opsets=self.opsets,
            nodes=tuple(self.nodes),
            initializers=self.initializers,
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
            metadata=self.metadata,
            files=(self.mapped.identity, *self.external.identities),
            file_bytes=sum(file.size for file in files),
            release=release,
        )

    def _opset(self, entry: Field) -> None:
        domain, version = "", 0
        for field in fields(expect(entry, WireType.LENGTH, "opset import").content, "opset import"):
            if field.number == 1:
                domain = text(field, "opset import: domain")
            elif field.number == 2:
                version = number(field, "opset import: version")
        self.opsets["" if domain == "ai.onnx" else domain] = version

    def _metadata(self, entry: Field) -> None:
        key = value = ""
        for field in fields(expect(entry, WireType.LENGTH, "metadata").content, "metadata"):
            if field.number == 1:
                key = text(field, "metadata: key")
            elif field.number == 2:
                value = text(field, f"metadata: {key}", 1 << 20)
        self.metadata[key] = value

    def _graph(self, graph: Cursor) -> None:
        readers: dict[int, Callable[[Field], None]] = {
            1: self._node,
            5: self._initializer,
            11: lambda field: _value_info(field, self.inputs),
            12: lambda field: _value_info(field, self.outputs),
            15: self._sparse,
        }
        for field in fields(graph, "graph"):
            reader = readers.get(field.number)
            if reader is not None:
                reader(expect(field, WireType.LENGTH, "graph"))

    def _node(self, field: Field) -> None:
        if len(self.nodes) >= MAXIMUM_NODES:
            field.content.fail("graph", f"has more than {MAXIMUM_NODES} nodes", field.start)
        self.nodes.append(read_node(field, len(self.nodes), self.tensors))

    def _initializer(self, field: Field) -> None:
        if len(self.initializers) >= MAXIMUM_INITIALIZERS:
            field.content.fail("graph", f"has more than {MAXIMUM_INITIALIZERS} initialisers", field.start)
        tensor = self.tensors.read(field.content, f"initialiser {len(self.initializers)}")
        if not tensor.name:
            field.content.fail("graph", "an initialiser without a name", field.start)
        if tensor.name in self.initializers:
            field.content.fail(tensor.name, "this initialiser appears twice", field.start)
        self.initializers[tensor.name] = tensor

    def _sparse(self, field: Field) -> None:
        raise UnsupportedFeature(f"{self.file}: the graph has sparse initialisers, which nybble does not read")

    def _check_overlaps(self) -> None:
        """Two tensors may share their bytes, but not parts of them."""
        by_file: dict[Path, list[ExternalRange]] = {}
        for extent in self.tensors.external_ranges:
            by_file.setdefault(extent.path, []).append(extent)
        for ranges in by_file.values():
            ranges.sort(key=lambda extent: (extent.offset, extent.end))
            for before, after in pairwise(ranges):
                same = (before.offset, before.end) == (after.offset, after.end)
                if before.end > after.offset and not same:
                    raise ModelFileError(
                        self.file,
                        after.tensor,
                        f"begins at byte {after.offset} of {after.path.name}, inside {before.tensor}, which ends at "
                        f"byte {before.end}",
                    )


def _value_info(entry: Field, into: list[ValueInfo]) -> None:
    if len(into) >= MAXIMUM_VALUES:
        entry.content.fail("graph", f"has more than {MAXIMUM_VALUES} inputs or outputs", entry.start)
    name, data_type = "", 0
    shape: tuple[int | None, ...] | None = None
    for field in fields(entry.content, "value"):
        if field.number == 1:
            name = text(field, "value: name")
        elif field.number == 2:
            for kind in fields(expect(field, WireType.LENGTH, name).content, name):
                if kind.number == 1:
                    data_type, shape = _tensor_type(expect(kind, WireType.LENGTH, name).content, name)
    into.append(ValueInfo(name, data_type, shape))


def _tensor_type(message: Cursor, name: str) -> tuple[int, tuple[int | None, ...] | None]:
    data_type = 0
    shape: tuple[int | None, ...] | None = None
    for field in fields(message, name):
        if field.number == 1:
            data_type = number(field, name)
        elif field.number == 2:
            extents: list[int | None] = []
            for dimension in fields(expect(field, WireType.LENGTH, name).content, name):
                if len(extents) >= MAXIMUM_DIMENSIONS:
                    message.fail(name, f"has more than {MAXIMUM_DIMENSIONS} dimensions")
                content = expect(dimension, WireType.LENGTH, name).content
                known = [number(part, name) for part in fields(content, name) if part.number == 1]
                extents.append(known[-1] if known else None)
            shape = tuple(extents)
    return data_type, shape
