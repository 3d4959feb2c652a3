"""One linear instead of several that read the same input: q/k/v, and gate/up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from ...quant.packing_rules import packed_as
from ...quant.tensor import Tensor
from ..graph import Buffer, Graph
from ..ops import Linear, Op
from .rewrite import Uses, rebuilt


def same_packing(left: Tensor, right: Tensor) -> bool:
    """Whether two weights may be rows of one packed matrix: the same codes and blocks, and the same length along K."""
    packed_left, packed_right = packed_as(left.packed_from), packed_as(right.packed_from)
    same_blocks = (packed_left.bits, packed_left.block, packed_left.has_offsets) == (
        packed_right.bits,
        packed_right.block,
        packed_right.has_offsets,
    )
    # F16 and BF16 have equal widths only.
    same_float = not packed_left.is_float or left.packed_from is right.packed_from
    return same_blocks and same_float and left.shape[1:] == right.shape[1:]


def merge_linears(graph: Graph, alike: Callable[[Tensor, Tensor], bool] = same_packing) -> Graph:
    """Merge neighbouring linears that read the same input and whose weights are ``alike``, to be packed as one matrix.

    The merged linear writes a new buffer as wide as all of them; the old outputs become views of it. Linears with and
    without biases, or with and without float activations, are not mixed; linears with a residual are left alone.
    """
    uses = Uses(graph)
    ops: list[Op] = []
    changed: dict[str, Buffer] = {}

    def mergeable_input(op: Op) -> str | None:
        if isinstance(op, Linear) and op.residual is None and uses.is_whole(op.output):
            return op.input
        return None

    for shared_input, neighbours in groupby(graph.ops, mergeable_input):
        if shared_input is None:
            ops.extend(neighbours)
            continue
        linears = [op for op in neighbours if isinstance(op, Linear)]
        for group in _groups(graph, linears, alike):
            if len(group) == 1:
                ops.append(group[0])
                continue
            merged = _merged(group)
            ops.append(merged)
            changed |= _views(graph, merged.output, group)
    return rebuilt(graph, ops, changed)


def _groups(graph: Graph, linears: Sequence[Linear], alike: Callable[[Tensor, Tensor], bool]) -> list[list[Linear]]:
    groups: list[list[Linear]] = []
    for linear in linears:
        for group in groups:
            first = group[0]
            weights = [graph.tensors[name] for name in linear.weights]
            fits = all(alike(graph.tensors[first.weights[0]], weight) for weight in weights)
            if fits and _kind(first) == _kind(linear):
                group.append(linear)
                break
        else:
            groups.append([linear])
    return groups


def _kind(linear: Linear) -> tuple[bool, bool]:
    return bool(linear.biases), linear.float_activations


def _merged(group: Sequence[Linear]) -> Linear:
    place, separator, _ = group[0].label.rpartition(" ")
    parts = [linear.label.removeprefix(place + separator) for linear in group]
    return Linear(
        label=place + separator + " + ".join(parts),
        input=group[0].input,
        weights=tuple(name for linear in group for name in linear.weights),
        output="+".join(linear.output for linear in group),
        biases=tuple(name for linear in group for name in linear.biases),
        float_activations=group[0].float_activations,
    )


def _views(graph: Graph, parent: str, group: Sequence[Linear]) -> dict[str, Buffer]:
    buffers: dict[str, Buffer] = {}
    offset = 0
    for linear in group:
        view = graph.buffers[linear.output]
        buffers[linear.output] = replace(view, parent=parent, offset=offset)
        offset += view.width
    buffers[parent] = Buffer(width=offset, per_output=graph.buffers[group[0].output].per_output)
    return buffers
