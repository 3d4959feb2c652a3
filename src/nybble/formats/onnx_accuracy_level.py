"""The ``accuracy_level`` of ``com.microsoft::MatMulNBits``: which activations ONNX Runtime multiplies with.

4 allows int8 activations, several times faster than fp32; 1 or a missing attribute means fp32. Levels:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidParameter, ModelFileError
from .cursor import Cursor
from .onnx_edit import NodeMessage, edit_nodes
from .protobuf import Field, WireType, expect, fields, number, text
from .protobuf_edit import Piece, edit_message, length_field, text_field, varint_field

ATTRIBUTE = "accuracy_level"
HIGHEST_LEVEL = 4
_INT = 2  # AttributeProto.AttributeType


@dataclass(slots=True)
class PatchedNodes:
    """How many ``MatMulNBits`` nodes there were, were meant, and were changed."""

    all: int = 0
    meant: int = 0
    changed: int = 0


def patch_accuracy_level(source: Path, target: Path, level: int | None, only: str | None = None) -> PatchedNodes:
    """Write ``source`` to ``target`` with ``level`` (None: no such attribute) on every ``MatMulNBits`` node whose name
    the regular expression ``only`` finds something in.

    Raises :class:`InvalidParameter` for a level outside 0..4, a wrong expression, or a ``target`` that cannot stand for
    the model; :class:`ModelFileError` for a damaged model, or one in which no node is meant.
    """
    if level is not None and not 0 <= level <= HIGHEST_LEVEL:
        raise InvalidParameter(f"the accuracy level is {level}; there are 0 to {HIGHEST_LEVEL}")
    try:
        pattern = re.compile(only or "")
    except re.error as error:
        raise InvalidParameter(f"{only!r} is no regular expression: {error}") from error
    nodes = PatchedNodes()

    def edit(node: NodeMessage) -> list[Piece] | None:
        if (node.domain, node.op_type) != ("com.microsoft", "MatMulNBits"):
            return None
        nodes.all += 1
        if not pattern.search(node.name):
            return None
        nodes.meant += 1
        pieces = _with_level(node.content, f"node {node.name!r}", level)
        nodes.changed += pieces is not None
        return pieces

    def check_meant() -> None:
        if nodes.meant == 0:
            found = "no com.microsoft::MatMulNBits node" if nodes.all == 0 else f"none of its {nodes.all} nodes matches"
            raise ModelFileError(source, "", f"{found}; nothing to patch")

    edit_nodes(source, target, edit, check_meant)
    return nodes


def _with_level(node: Cursor, what: str, level: int | None) -> list[Piece] | None:
    """The node's message with the level set, or None if it is set already."""
    present = False

    def edit(field: Field) -> list[Piece] | None:
        nonlocal present
        if field.number != 5:
            return None
        content = expect(field, WireType.LENGTH, what).content
        start = content.position
        if not any(part.number == 1 and text(part, what) == ATTRIBUTE for part in fields(content, what)):
            return None
        if present:
            content.fail(what, f"has {ATTRIBUTE} twice", field.start)
        present = True
        if level is None:
            return []
        content.position = start
        pieces = _attribute_with_level(content, what, level)
        return None if pieces is None else length_field(5, pieces)

    start = node.position
    pieces = edit_message(node, what, edit)
    if present or level is None:
        return pieces
    attribute = [text_field(1, ATTRIBUTE), varint_field(3, level), varint_field(20, _INT)]
    node.position = start
    return _appended(node, what, length_field(5, attribute))


def _appended(node: Cursor, what: str, attribute: list[Piece]) -> list[Piece] | None:
    """The node with one attribute more, where protobuf's own writers put it: fields in order of their numbers."""
    start = node.position
    before = [field for field in fields(node, what) if field.number <= 5]
    node.position = start
    if not before:
        return edit_message(node, what, lambda _: None, attribute)
    last = before[-1]
    kept: Piece = node.data[last.start : last.end]
    return edit_message(node, what, lambda field: [kept, *attribute] if field.start == last.start else None)


def _attribute_with_level(attribute: Cursor, what: str, level: int) -> list[Piece] | None:
    found: int | None = None

    def edit(field: Field) -> list[Piece] | None:
        nonlocal found
        if field.number == 20 and number(field, what) != _INT:
            field.content.fail(what, f"its {ATTRIBUTE} is no integer", field.start)
        if field.number != 3:
            return None
        found = number(field, what)
        return None if found == level else [varint_field(3, level)]

    start = attribute.position
    pieces = edit_message(attribute, what, edit)
    if found is not None:
        return pieces
    attribute.position = start
    return edit_message(attribute, what, lambda _: None, [varint_field(3, level)])
