"""The residual connection as a linear's epilogue instead of an op of its own."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Graph
from ..ops import Add, Linear, Op
from .rewrite import Uses, rebuilt


def fold_residuals(graph: Graph) -> Graph:
    """Fold each Add into the linear that computes one of its sides, where nothing else reads that side.

    The linear moves to the place of the Add, where its other side is certain to be written.
    """
    uses = Uses(graph)
    folded: dict[int, Op] = {}
    removed: set[int] = set()
    for position, op in enumerate(graph.ops):
        if not isinstance(op, Add):
            continue
        for side, residual in ((op.right, op.left), (op.left, op.right)):
            linear = graph.ops[uses.written_at(side)]
            if isinstance(linear, Linear) and linear.residual is None and uses.has_one_reader(side):
                folded[position] = replace(linear, residual=residual, output=op.output)
                removed.add(uses.written_at(side))
                break
    ops = [folded.get(position, op) for position, op in enumerate(graph.ops) if position not in removed]
    return rebuilt(graph, ops)
