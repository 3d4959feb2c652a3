"""Moving ``MatMulNBits`` nodes to the domain of nybble's custom operator, and back.

ONNX Runtime versions without plugin execution providers run the kernels of ``nybble.ort`` for nodes of that domain.
Their inputs and attributes are those of ``com.microsoft``'s, so nothing but the domain of a node and the model's list
of imported domains changes, and moving back restores the file byte for byte.
"""

from __future__ import annotations

from pathlib import Path

from .onnx_edit import DomainImports, NodeMessage
from .onnx_model import MICROSOFT
from .onnx_patch import PatchedNodes, patch_nodes
from .protobuf import Field
from .protobuf_edit import Piece, edit_message, text_field

CUSTOM_OP_DOMAIN = "nybble"


def move_to_custom_op(source: Path, target: Path, only: str | None = None) -> PatchedNodes:
    """Write ``source`` to ``target`` with its ``MatMulNBits`` nodes on the custom operator: those whose name the
    regular expression ``only`` finds something in.

    Raises :class:`InvalidParameter` for a wrong expression or a ``target`` that cannot stand for the model;
    :class:`ModelFileError` for a damaged model, one in which no node is meant, or one with such nodes in functions.
    """
    return _move(source, target, MICROSOFT, CUSTOM_OP_DOMAIN, DomainImports(added=CUSTOM_OP_DOMAIN), only)


def move_from_custom_op(source: Path, target: Path) -> PatchedNodes:
    """Undo :func:`move_to_custom_op`: all nodes of the custom operator become com.microsoft's; raises as it does."""
    return _move(source, target, CUSTOM_OP_DOMAIN, MICROSOFT, DomainImports(removed=CUSTOM_OP_DOMAIN), None)


def _move(source: Path, target: Path, domain: str, to: str, imports: DomainImports, only: str | None) -> PatchedNodes:
    def edit_domain(field: Field) -> list[Piece] | None:
        return [text_field(7, to)] if field.number == 7 else None

    def edit(node: NodeMessage) -> list[Piece] | None:
        what = f"node {node.name!r}"
        if node.is_in_function:
            node.content.fail(what, "lies in a function of the model, which imports domains of its own; not moved")
        return edit_message(node.content, what, edit_domain)

    return patch_nodes(source, target, domain, only, edit, "move", imports)
