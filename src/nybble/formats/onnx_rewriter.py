"""Writing an ONNX model anew with some nodes and weights replaced; the rest of its graph stays as it is on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidParameter, UnsupportedFeature
from .cursor import Cursor
from .mapped_file import MappedFile
from .onnx import read_onnx
from .onnx_edit import write_pieces
from .onnx_model import DataType, OnnxNode, OnnxTensor, Subgraph
from .onnx_writer import IR_VERSION, NewNode, WeightsFile
from .protobuf import Field, WireType, expect, fields, number, text
from .protobuf_edit import Piece, edit_message, length_field, text_field, varint_field


class ModelRewriter:
    """A context: on leaving it without an error, ``target`` and its weights in ``target``.data are there.

    All large weights move to the new file. Nodes and weights that nothing uses any more are left out.
    Raises :class:`InvalidParameter` for files that exist, or a folder that does not.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._weights_path = target.with_name(f"{target.name}.data")
        for path in (target, self._weights_path):
            if path.exists():
                raise InvalidParameter(f"{path} is there already; name another file")
        if not target.absolute().parent.is_dir():
            raise InvalidParameter(f"{target.absolute().parent} is no folder; make it first")
        self._mapped = MappedFile(source)
        self._target = target
        self.model = read_onnx(self._mapped)
        if any(isinstance(value, Subgraph) for node in self.model.nodes for value in node.attributes.values()):
            raise UnsupportedFeature(f"{source}: has nodes with graphs of their own, which nybble does not convert")
        self._replaced: dict[int, Sequence[NewNode]] = {}
        self._left: Counter[str] = Counter(name for node in self.model.nodes for name in node.inputs)
        # Files of before IR version 4 list their initialisers as inputs too; those stay.
        self._left.update(value.name for value in (*self.model.inputs, *self.model.outputs))
        self._added: list[Piece] = []
        self._names = set(self.model.initializers)
        self._imports: set[str] = set()

    def __enter__(self) -> ModelRewriter:
        self._weights = WeightsFile(self._weights_path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._weights.__exit__(kind, error, trace)
            return
        with self._weights:
            pieces = self._pieces()
        try:
            write_pieces(self._target, pieces)
        except BaseException:
            self._weights_path.unlink(missing_ok=True)
            raise

    def initializer(self, name: str) -> OnnxTensor:
        """The initialiser ``name``. Raises :class:`UnsupportedFeature` if a node computes it."""
        if name not in self.model.initializers:
            raise UnsupportedFeature(f"{self.model.path}: {name!r} is no initialiser; expected a constant weight")
        return self.model.initializers[name]

    def has(self, name: str) -> bool:
        """Whether there is an initialiser ``name``, added or from the start."""
        return name in self._names

    def add(self, name: str, data_type: DataType, shape: Sequence[int], octets: NDArray[np.uint8]) -> None:
        """Add an initialiser; ``octets`` are its bytes, uint8 (bytes,)."""
        self._names.add(name)
        self._added += length_field(5, self._weights.tensor(name, data_type, shape, octets))

    def replace(self, node: OnnxNode, others: Sequence[NewNode]) -> None:
        """Put ``others`` in the place of ``node``."""
        self._replaced[node.start] = others
        self._left.subtract(node.inputs)
        for other in others:
            self._left.update(other.inputs)

    def import_domain(self, domain: str) -> None:
        """Have the model import version 1 of ``domain``."""
        if domain not in self.model.opsets:
            self._imports.add(domain)

    def _pieces(self) -> list[Piece]:
        self._drop_unread()
        cursor = Cursor(self._mapped.data, str(self.model.path))
        added: list[Piece] = []
        for domain in sorted(self._imports):
            added += length_field(8, [text_field(1, domain), varint_field(2, 1)])
        pieces = edit_message(cursor, "ONNX model", self._edit_model, added)
        assert pieces is not None
        return pieces

    def _drop_unread(self) -> None:
        """Leave out nodes whose outputs were read by replaced ones only."""
        for node in reversed(self.model.nodes):
            was_read = any(name in self._left for name in node.outputs)
            if node.start not in self._replaced and was_read and not any(self._left[name] for name in node.outputs):
                self.replace(node, [])

    def _edit_model(self, field: Field) -> list[Piece] | None:
        if field.number == 1 and number(field, "ir_version") < IR_VERSION:
            return [varint_field(1, IR_VERSION)]
        if field.number != 7:
            return None
        graph = expect(field, WireType.LENGTH, "graph").content
        pieces = edit_message(graph, "graph", self._edit_graph, self._added)
        return None if pieces is None else length_field(7, pieces)

    def _edit_graph(self, field: Field) -> list[Piece] | None:
        if field.number == 1 and field.start in self._replaced:
            return [piece for node in self._replaced[field.start] for piece in length_field(1, node.message())]
        if field.number != 5:
            return None
        parts = fields(expect(field, WireType.LENGTH, "initialiser").content, "initialiser")
        name = next((text(part, "initialiser") for part in parts if part.number == 8), "")
        if name in self._left and not self._left[name]:
            return []
        tensor = self.model.initializers[name]
        return length_field(5, self._weights.tensor(name, tensor.data_type, tensor.shape, tensor.octets))
