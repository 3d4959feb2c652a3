"""Changing nodes of an ONNX model on the wire, without loading its weights or knowing all of its fields.

Messages: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidParameter, ModelFileError
from .cursor import Cursor
from .mapped_file import MappedFile
from .protobuf import Field, WireType, expect, fields, number, text
from .protobuf_edit import Piece, edit_message, length_field, text_field, varint_field
from .whole_file import WholeFile

DEEPEST_SUBGRAPH = 8
# What initialisers that lie in other files say in `data_location`.
EXTERNAL = 1


@dataclass(frozen=True, slots=True)
class NodeMessage:
    """What an edit is told of a node; ``content`` is the node's message."""

    name: str
    domain: str
    op_type: str
    content: Cursor
    is_in_function: bool


@dataclass(frozen=True, slots=True)
class DomainImports:
    """What a model is to say about the domains of its operators: that it imports version 1 of ``added``, and that it
    does not import ``removed``."""

    added: str | None = None
    removed: str | None = None


NO_CHANGE = DomainImports()

# Gives a node's new message in pieces, or None to leave it as it is.
NodeEdit = Callable[[NodeMessage], Sequence[Piece] | None]


def edit_nodes(source: Path, target: Path, edit: NodeEdit, check: Callable[[], None], imports: DomainImports) -> None:
    """Write the model of ``source`` to ``target`` with each node, also those of subgraphs and functions, as ``edit``
    has it, and with ``imports``. All other bytes stay the same; ``target`` appears whole or not at all, and not if
    ``check``, called when all nodes are known, raises.

    Raises :class:`ModelFileError` for a damaged model, :class:`InvalidParameter` for a ``target`` that is ``source``
    or lies in a folder without the model's external data.
    """
    mapped = MappedFile(source)
    if target.exists() and target.samefile(source):
        raise InvalidParameter(f"{target} is the model itself; write the patched model to another file")
    editor = _Editor(edit, imports)
    pieces = edit_message(Cursor(mapped.data, str(source)), "ONNX model", editor.edit_model)
    if not editor.has_graph:
        raise ModelFileError(source, "", "is no ONNX model, or a truncated one: it has no graph")
    check()
    for location in sorted(editor.locations):
        if not (target.parent / location).is_file():
            raise InvalidParameter(
                f"{target}: the model's weights lie in {location} beside it, and {target.parent} has no such file; "
                f"write into {source.parent}, or copy the weights there first"
            )
    written: list[Piece] = [mapped.data] if pieces is None else pieces
    if imports.added and not editor.has_import:
        written += length_field(8, [text_field(1, imports.added), varint_field(2, 1)])
    write_pieces(target, written)


def write_pieces(target: Path, pieces: Sequence[Piece]) -> None:
    """Make the file ``target`` of ``pieces``, whole or not at all."""
    with WholeFile(target) as new:
        for piece in pieces:
            new.file.write(piece)


class _Editor:
    def __init__(self, edit: NodeEdit, imports: DomainImports) -> None:
        self.edit = edit
        self.imports = imports
        self.has_import = False
        self.locations: set[str] = set()
        self.has_graph = False

    def edit_model(self, field: Field) -> list[Piece] | None:
        if field.number == 7:
            self.has_graph = True
            return self._nested(field, "graph", lambda inner: self._edit_graph(inner, 0))
        if field.number == 8:
            return self._edit_import(field)
        if field.number == 25:
            return self._nested(field, "function", self._edit_function)
        return None

    def _edit_import(self, field: Field) -> list[Piece] | None:
        content = expect(field, WireType.LENGTH, "opset_import").content
        domain = ""
        for part in fields(content, "opset_import"):
            if part.number == 1:
                domain = text(part, "opset_import")
        self.has_import |= domain == self.imports.added
        return [] if domain == self.imports.removed else None

    def _edit_graph(self, field: Field, depth: int) -> list[Piece] | None:
        if field.number == 1:
            return self._edit_node(field, depth)
        if field.number == 5:
            self._note_external(field)
        return None

    def _edit_function(self, field: Field) -> list[Piece] | None:
        return self._edit_node(field, 0, is_in_function=True) if field.number == 7 else None

    def _edit_node(self, field: Field, depth: int, *, is_in_function: bool = False) -> list[Piece] | None:
        content = expect(field, WireType.LENGTH, "node").content
        message = (content.data, content.file, content.position, content.end, content.boundary)
        words = {3: "", 4: "", 7: ""}
        for part in fields(Cursor(*message), "node"):
            if part.number in (3, 4, 7):
                words[part.number] = text(part, "node")
        node = NodeMessage(words[3], words[7], words[4], Cursor(*message), is_in_function)
        replacement = self.edit(node)
        if replacement is None:
            replacement = edit_message(content, "node", lambda part: self._edit_attribute(part, depth))
        return None if replacement is None else length_field(field.number, replacement)

    def _edit_attribute(self, field: Field, depth: int) -> list[Piece] | None:
        if field.number != 5:
            return None
        return self._nested(field, "attribute", lambda part: self._edit_subgraph(part, depth + 1))

    def _edit_subgraph(self, field: Field, depth: int) -> list[Piece] | None:
        if field.number not in (6, 11):  # a graph, or one of several
            return None
        if depth > DEEPEST_SUBGRAPH:
            field.content.fail("attribute", f"graphs inside graphs, more than {DEEPEST_SUBGRAPH} deep", field.start)
        return self._nested(field, "subgraph", lambda inner: self._edit_graph(inner, depth))

    def _nested(self, field: Field, what: str, edit: Callable[[Field], Sequence[Piece] | None]) -> list[Piece] | None:
        pieces = edit_message(expect(field, WireType.LENGTH, what).content, what, edit)
        return None if pieces is None else length_field(field.number, pieces)

    def _note_external(self, initializer: Field) -> None:
        """Remember the file an initialiser's data lie in, if they lie in another."""
        location, is_external = "", False
        for field in fields(expect(initializer, WireType.LENGTH, "initialiser").content, "initialiser"):
            if field.number == 14:
                is_external = number(field, "initialiser: data_location") == EXTERNAL
            elif field.number == 13:
                entry = {
                    part.number: text(part, "initialiser: external data")
                    for part in fields(expect(field, WireType.LENGTH, "initialiser").content, "initialiser")
                }
                if entry.get(1) == "location":
                    location = entry.get(2, "")
        if is_external and location:
            self.locations.add(location)
