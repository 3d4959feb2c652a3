"""The ``accuracy_level`` of ``com.microsoft::MatMulNBits``: which activations ONNX Runtime multiplies with.

4 allows int8 activations, several times faster than fp32; 1 or a missing attribute means fp32. Levels:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidParameter
from .cursor import Cursor
from .onnx_edit import NodeMessage
from .onnx_model import MICROSOFT
from .onnx_patch import PatchedNodes, patch_nodes
from .protobuf import Field, WireType, expect, fields, number, text
from .protobuf_edit import Piece, edit_message, length_field, text_field, varint_field

ATTRIBUTE = "accuracy_level"
INT8_LEVEL = 4
"""Allows int8 activations; the highest there is."""

PATCH_COMMAND = f"nybble patch IN.onnx OUT.onnx --accuracy-level {INT8_LEVEL}"
_INT = 2  # AttributeProto.AttributeType


def patch_accuracy_level(source: Path, target: Path, level: int | None, only: str | None = None) -> PatchedNodes:
    """Write ``source`` to ``target`` with ``level`` (None: no such attribute) on every ``MatMulNBits`` node whose name
    the regular expression ``only`` finds something in.

    Raises :class:`InvalidParameter` for a level outside 0..4, a wrong expression, or a ``target`` that cannot stand for
    the model; :class:`ModelFileError` for a damaged model, or one in which no node is meant.
    """
    if level is not None and not 0 <= level <= INT8_LEVEL:
        raise InvalidParameter(f"the accuracy level is {level}; there are 0 to {INT8_LEVEL}")

    def edit(node: NodeMessage) -> list[Piece] | None:
        return _with_level(node.content, f"node {node.name!r}", level)

    return patch_nodes(source, target, MICROSOFT, only, edit, "patch")


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
