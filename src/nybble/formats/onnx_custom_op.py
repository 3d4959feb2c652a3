"""Moving ``MatMulNBits`` nodes to the domain of nybble's custom operator, and back.

ONNX Runtime versions without plugin execution providers run the kernels of ``nybble.ort`` for nodes of that domain.
Their inputs and attributes are those of ``com.microsoft``'s, so nothing but the domain of a node and the model's list
of imported domains changes, and moving back restores the file byte for byte.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import InvalidParameter, ModelFileError
from .onnx_accuracy_level import PatchedNodes
from .onnx_edit import DomainImports, NodeMessage, edit_nodes
from .protobuf import Field
from .protobuf_edit import Piece, edit_message, text_field

ORIGINAL_DOMAIN = "com.microsoft"
CUSTOM_OP_DOMAIN = "nybble"
_OP_TYPE = "MatMulNBits"


def move_to_custom_op(source: Path, target: Path, only: str | None = None) -> PatchedNodes:
    """Write ``source`` to ``target`` with its ``MatMulNBits`` nodes on the custom operator: those whose name the
    regular expression ``only`` finds something in.

    Raises :class:`InvalidParameter` for a wrong expression or a ``target`` that cannot stand for the model;
    :class:`ModelFileError` for a damaged model, one in which no node is meant, or one with such nodes in functions.
    """
    try:
        pattern = re.compile(only or "")
    except re.error as error:
        raise InvalidParameter(f"{only!r} is no regular expression: {error}") from error
    return _move(source, target, ORIGINAL_DOMAIN, DomainImports(added=CUSTOM_OP_DOMAIN), pattern)


def move_from_custom_op(source: Path, target: Path) -> PatchedNodes:
    """Undo :func:`move_to_custom_op`: all nodes of the custom operator become com.microsoft's; raises as it does."""
    return _move(source, target, CUSTOM_OP_DOMAIN, DomainImports(removed=CUSTOM_OP_DOMAIN), re.compile(""))


def _move(source: Path, target: Path, domain: str, imports: DomainImports, pattern: re.Pattern[str]) -> PatchedNodes:
    nodes = PatchedNodes()
    to = CUSTOM_OP_DOMAIN if domain == ORIGINAL_DOMAIN else ORIGINAL_DOMAIN

    def edit(node: NodeMessage) -> list[Piece] | None:
        if (node.domain, node.op_type) != (domain, _OP_TYPE):
            return None
        nodes.all += 1
        if not pattern.search(node.name):
            return None
        what = f"node {node.name!r}"
        if node.is_in_function:
            node.content.fail(what, "lies in a function of the model, which imports domains of its own; not moved")
        nodes.meant += 1
        nodes.changed += 1

        def edit_domain(field: Field) -> list[Piece] | None:
            return [text_field(7, to)] if field.number == 7 else None

        return edit_message(node.content, what, edit_domain)

    def check_meant() -> None:
        if nodes.meant == 0:
            found = f"no {domain}::{_OP_TYPE} node" if nodes.all == 0 else f"none of its {nodes.all} nodes matches"
            raise ModelFileError(source, "", f"{found}; nothing to move")

    edit_nodes(source, target, edit, check_meant, imports)
    return nodes
