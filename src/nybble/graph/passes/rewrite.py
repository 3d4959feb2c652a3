"""What every pass needs: who reads and writes a buffer, and putting a graph together again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..check import check
from ..graph import BUFFERS_READ, Buffer, Graph, buffer_written, buffers_read
from ..ops import Op


class Uses:
    """Where the buffers of a graph are written and read, as positions in ``graph.ops``.

    To read a view is to read its parent too.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.writer: dict[str, int] = {}
        self.readers: dict[str, list[int]] = defaultdict(list)
        self._parents = {buffer.parent for buffer in graph.buffers.values()}
        for position, op in enumerate(graph.ops):
            for name in buffers_read(op):
                self.readers[name].append(position)
                if (parent := graph.buffers[name].parent) is not None:
                    self.readers[parent].append(position)
            output = buffer_written(op)
            if output is not None:
                self.writer[output] = position

    def written_at(self, name: str) -> int:
        """Position of the op that writes ``name``, or the buffer that ``name`` is a view of."""
        return self.writer[self.graph.buffers[name].parent or name]

    def is_whole(self, name: str) -> bool:
        """True if ``name`` is neither a view nor has views, and is not the logits."""
        return self.graph.buffers[name].parent is None and name not in self._parents and name != self.graph.logits

    def has_one_reader(self, name: str) -> bool:
        """True if ``name`` is whole and read exactly once, so that it may disappear into its reader."""
        return self.is_whole(name) and len(self.readers[name]) == 1


def rename_reads(op: Op, names: Mapping[str, str]) -> Op:
    """``op`` reading ``names[x]`` wherever it read buffer ``x``; what it writes keeps its name."""
    changes: dict[str, Any] = {field: names[old] for field in BUFFERS_READ if (old := getattr(op, field, "")) in names}
    return replace(op, **changes) if changes else op


def rebuilt(
    graph: Graph, ops: Sequence[Op], changed: Mapping[str, Buffer] | None = None, logits: str | None = None
) -> Graph:
    """``graph`` with other ``ops``, checked.

    ``changed`` are new or changed buffers; buffers that no op mentions any more are dropped.
    """
    buffers = {**graph.buffers, **(changed or {})}
    mentioned = {name for op in ops for name in (*buffers_read(op), buffer_written(op)) if name is not None}
    kept = {name: buffer for name, buffer in buffers.items() if name in mentioned or buffer.parent in mentioned}
    return check(replace(graph, ops=tuple(ops), buffers=kept, logits=logits or graph.logits))
