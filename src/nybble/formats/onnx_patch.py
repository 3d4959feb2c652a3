"""Patching the ``MatMulNBits`` nodes of an ONNX model: those of a domain, and by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidParameter, ModelFileError
from .onnx_edit import NO_CHANGE, DomainImports, NodeEdit, NodeMessage, edit_nodes
from .onnx_model import MAT_MUL_N_BITS
from .protobuf_edit import Piece


@dataclass(slots=True)
class PatchedNodes:
    """How many ``MatMulNBits`` nodes there were, were meant, and were changed."""

    all: int = 0
    meant: int = 0
    changed: int = 0


def patch_nodes(
    source: Path,
    target: Path,
    domain: str,
    only: str | None,
    edit: NodeEdit,
    purpose: str,
    imports: DomainImports = NO_CHANGE,
) -> PatchedNodes:
    """Write ``source`` to ``target`` with every ``MatMulNBits`` of ``domain`` in whose name the regular expression
    ``only`` finds something as ``edit`` has it, and with ``imports``.

    Raises :class:`InvalidParameter` for a wrong expression or a ``target`` that cannot stand for the model;
    :class:`ModelFileError` for a damaged model, or one in which no node is meant: there is nothing to ``purpose``.
    """
    try:
        pattern = re.compile(only or "")
    except re.error as error:
        raise InvalidParameter(f"{only!r} is no regular expression: {error}") from error
    nodes = PatchedNodes()

    def edit_meant(node: NodeMessage) -> list[Piece] | None:
        if (node.domain, node.op_type) != (domain, MAT_MUL_N_BITS):
            return None
        nodes.all += 1
        if not pattern.search(node.name):
            return None
        nodes.meant += 1
        pieces = edit(node)
        nodes.changed += pieces is not None
        return None if pieces is None else list(pieces)

    def check_meant() -> None:
        if nodes.meant == 0:
            found = f"none of its {nodes.all} nodes matches" if nodes.all else f"no {domain}::{MAT_MUL_N_BITS} node"
            raise ModelFileError(source, "", f"{found}; nothing to {purpose}")

    edit_nodes(source, target, edit_meant, check_meant, imports)
    return nodes
