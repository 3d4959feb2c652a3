"""The numbers of the elements of all buffers and caches, and the buffers they are found in again."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graph.graph import Buffer
from .values import STEP_TOKENS, Elements

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive features of a buffer: those of all tokens of the step, or of the last one only."""

    buffer: str
    width: int
    only_last: bool


class ElementTable:
    """Gives every element of every buffer a number. ``buffers`` are those of the graph, views included.

    The number of feature f of token t is the buffer's base + t · width + f.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self._bases: list[int] = []
        self._sources: list[str] = []
        self._widths: list[int] = []
        self._end = 0

    def reserve(self, name: str, count: int) -> Numbers:
        """The numbers of ``count`` elements of something that is no buffer, such as a cache."""
        return self._allocate(name, 0, count)

    def write(self, name: str, width: int, shape: tuple[int, ...], *, only_last: bool = False) -> Elements:
        """Declare a buffer and return its elements in ``shape``, rows of tokens in order."""
        self.buffers[name] = Buffer(width)
        numbers = self._allocate(name, width, STEP_TOKENS * width)
        return Elements((numbers[-width:] if only_last else numbers).reshape(shape))

    def source(self, number: int) -> str:
        """What the element is one of."""
        return self._sources[bisect_right(self._bases, number) - 1]

    def rows(self, numbers: Numbers) -> Rows | None:
        """The rows whose elements ``numbers`` are, in order; a view is declared for part of a buffer's features.

        None if they are anything else.
        """
        flat = numbers.reshape(-1)
        if not len(flat):
            return None
        place = bisect_right(self._bases, int(flat[0])) - 1
        width, base = self._widths[place], self._bases[place]
        if width == 0:
            return None
        first = int(flat[0]) - base
        tokens = STEP_TOKENS - first // width
        if tokens not in (1, STEP_TOKENS) or len(flat) % tokens:
            return None
        count, offset = len(flat) // tokens, first % width
        token = np.arange(STEP_TOKENS - tokens, STEP_TOKENS)[:, None]
        expected = base + token * width + offset + np.arange(count)
        if offset + count > width or not np.array_equal(flat, expected.reshape(-1)):
            return None
        name = self._sources[place]
        if count < width:
            parent, name = name, f"{name}[{offset}:{offset + count}]"
            self.buffers[name] = Buffer(count, parent=parent, offset=offset)
        return Rows(name, count, tokens == 1)

    def _allocate(self, name: str, width: int, count: int) -> Numbers:
        base = self._end
        self._bases.append(base)
        self._sources.append(name)
        self._widths.append(width)
        self._end += count
        return np.arange(base, base + count, dtype=np.int64)
