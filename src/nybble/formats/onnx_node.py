"""Nodes of an ONNX graph and their attributes, read from the wire."""

from __future__ import annotations

import struct
from typing import Protocol

from .cursor import Cursor
from .onnx_model import AttributeValue, OnnxNode, OnnxTensor, Subgraph
from .protobuf import Field, WireType, expect, fields, number, text, varints

MAXIMUM_EDGES = 4096  # inputs or outputs of a node
MAXIMUM_ATTRIBUTES = 256
MAXIMUM_ATTRIBUTE_NUMBERS = 1 << 16


class ReadsTensors(Protocol):
    """What reads the tensors that attributes hold."""

    def read(self, message: Cursor, what: str) -> OnnxTensor:
        """The tensor in ``message``."""
        ...


def read_node(entry: Field, place: int, tensors: ReadsTensors) -> OnnxNode:
    """The node in ``entry``, the ``place``-th of its graph. Subgraphs in attributes are not entered.

    Raises :class:`~nybble.errors.ModelFileError` for anything malformed, or larger than a node can need.
    """
    what = f"node {place}"
    name = domain = operator = ""
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: dict[str, AttributeValue] = {}
    for field in fields(entry.content, what):
        if field.number in (1, 2):
            edges = inputs if field.number == 1 else outputs
            if len(edges) >= MAXIMUM_EDGES:
                entry.content.fail(what, f"has more than {MAXIMUM_EDGES} inputs or outputs", field.start)
            edges.append(text(field, f"{what}: edge"))
        elif field.number == 3:
            name = text(field, f"{what}: name")
        elif field.number == 4:
            operator = text(field, f"{what}: op type", 256)
        elif field.number == 5:
            if len(attributes) >= MAXIMUM_ATTRIBUTES:
                entry.content.fail(what, f"has more than {MAXIMUM_ATTRIBUTES} attributes", field.start)
            key, value = _attribute(expect(field, WireType.LENGTH, what).content, what, tensors)
            if key in attributes:
                entry.content.fail(what, f"has the attribute {key!r} twice", field.start)
            attributes[key] = value
        elif field.number == 7:
            domain = text(field, f"{what}: domain", 256)
    if not operator:
        entry.content.fail(what, "has no op type", entry.start)
    domain = "" if domain == "ai.onnx" else domain
    return OnnxNode(name, domain, operator, tuple(inputs), tuple(outputs), attributes, entry.start, entry.end)


def _attribute(message: Cursor, node: str, tensors: ReadsTensors) -> tuple[str, AttributeValue]:
    """An attribute's name and value. What kind it is follows from the field that is present, checked with ``type``."""
    start = message.position
    name, kind = "", 0
    parts: list[Field] = []
    for field in fields(message, f"{node}: attribute"):
        if field.number == 1:
            name = text(field, f"{node}: attribute name", 256)
        elif field.number == 20:
            kind = number(field, f"{node}: attribute {name}")
        elif field.number == 21:
            message.fail(f"{node}: attribute {name}", "refers to an attribute of a function", field.start)
        elif field.number != 13:
            parts.append(field)
    what = f"{node}: attribute {name}"
    if not name:
        message.fail(what, "has no name", start)
    return name, _value(message, what, kind, parts, tensors)


def _value(message: Cursor, what: str, kind: int, parts: list[Field], tensors: ReadsTensors) -> AttributeValue:
    if len(parts) > MAXIMUM_ATTRIBUTE_NUMBERS:
        message.fail(what, f"has more than {MAXIMUM_ATTRIBUTE_NUMBERS} values")
    # AttributeProto.type and the number of the field that holds values of it.
    field_of = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 8, 8: 9, 9: 10, 10: 11}
    expected = field_of.get(kind)
    if expected is None or any(part.number != expected for part in parts):
        message.fail(what, f"is of type {kind} but holds fields {sorted({part.number for part in parts})}")
    if kind in (5, 10):
        return Subgraph()
    if kind in (6, 7, 8):
        return _list(message, what, kind, parts)
    if len(parts) != 1:
        # A zero may be left out by a proto3 writer.
        if not parts and kind in (1, 2):
            return 0.0 if kind == 1 else 0
        message.fail(what, f"has {len(parts)} values; expected one")
    part = parts[0]
    match kind:
        case 1:
            return _float(part, what)
        case 2:
            return number(part, what)
        case 3:
            return text(part, what)
        case 4:
            return tensors.read(expect(part, WireType.LENGTH, what).content, what)
        case _:
            message.fail(what, f"is of type {kind}, which no op of a decoder has")


def _list(message: Cursor, what: str, kind: int, parts: list[Field]) -> list[int] | list[float] | list[str]:
    if kind == 8:
        return [text(part, what) for part in parts]
    if kind == 7:
        numbers: list[int] = []
        for part in parts:
            numbers += varints(part, what, MAXIMUM_ATTRIBUTE_NUMBERS - len(numbers))
        return numbers
    floats: list[float] = []
    for part in parts:
        if part.wire_type is WireType.FIXED32:
            floats.append(_float(part, what))
        else:
            content = expect(part, WireType.LENGTH, what).content
            if content.remaining > 4 * MAXIMUM_ATTRIBUTE_NUMBERS:
                message.fail(what, f"has more than {MAXIMUM_ATTRIBUTE_NUMBERS} values")
            while content.remaining:
                floats.append(content.f32(what))
    return floats


def _float(part: Field, what: str) -> float:
    value = expect(part, WireType.FIXED32, what).value
    return float(struct.unpack("<f", struct.pack("<I", value))[0])
