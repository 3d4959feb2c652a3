"""q/k norm, RoPE and the KV append as one op, because each alone is over before its threads have woken."""

from __future__ import annotations

from typing import NamedTuple

from ..graph import Graph
from ..ops import Attention, KVAppend, Op, RMSNorm, Rope, RotateAppend
from .rewrite import Uses, rebuilt


class _Rotated(NamedTuple):
    """A buffer on its way through [RMSNorm] and Rope, and the positions of the ops it passes."""

    source: str
    norm: RMSNorm | None
    rope: Rope
    positions: tuple[int, ...]


def fuse_rotate_append(graph: Graph) -> Graph:
    """Replace each layer's [RMSNorm per head,] Rope of q and k and KVAppend by one RotateAppend where KVAppend stood.

    A layer is left as it is if anything else reads what lies between, if the rotated query is read before the keys are
    appended, or if the two norms have different epsilons.
    """
    uses = Uses(graph)
    fused: dict[int, Op] = {}
    removed: set[int] = set()
    attentions = {op.layer: op for op in graph.ops if isinstance(op, Attention)}
    for position, op in enumerate(graph.ops):
        if not isinstance(op, KVAppend) or op.layer not in attentions:
            continue
        query = _trace(graph, uses, attentions[op.layer].query)
        key = _trace(graph, uses, op.key) if uses.has_one_reader(op.key) else None
        if query is None or key is None or not _fits(uses, query, key, position):
            continue
        if removed.intersection(query.positions):
            continue  # the layer before took this query
        norms = [norm for norm in (query.norm, key.norm) if norm is not None]
        fused[position] = RotateAppend(
            label=f"{op.label} with rotation",
            layer=op.layer,
            query=query.source,
            key=key.source,
            value=op.value,
            output=query.rope.output,
            head_dim=query.rope.head_dim,
            query_norm=query.norm.weight if query.norm else None,
            key_norm=key.norm.weight if key.norm else None,
            epsilon=norms[0].epsilon if norms else 0.0,
        )
        removed.update(query.positions, key.positions)
    ops = [fused.get(position, op) for position, op in enumerate(graph.ops) if position not in removed]
    return rebuilt(graph, ops)


def _trace(graph: Graph, uses: Uses, rotated: str) -> _Rotated | None:
    rope_at = uses.written_at(rotated)
    rope = graph.ops[rope_at]
    if not isinstance(rope, Rope):
        return None
    norm_at = uses.written_at(rope.input)
    norm = graph.ops[norm_at]
    if isinstance(norm, RMSNorm) and norm.group == rope.head_dim and uses.has_one_reader(rope.input):
        return _Rotated(norm.input, norm, rope, (norm_at, rope_at))
    return _Rotated(rope.input, None, rope, (rope_at,))


def _fits(uses: Uses, query: _Rotated, key: _Rotated, position: int) -> bool:
    epsilons = {norm.epsilon for norm in (query.norm, key.norm) if norm is not None}
    written = max(uses.written_at(query.source), uses.written_at(key.source))
    read = min(uses.readers[query.rope.output])
    return len(epsilons) <= 1 and written < position < read
