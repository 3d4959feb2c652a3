"""Many texts in one block of bytes: a vocabulary that costs nothing until a token is spelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class TextArray(Sequence[str]):
    """The texts that end at ``ends`` (uint32, in bytes) of ``octets``, which are UTF-8."""

    __slots__ = ("_ends", "_octets")

    def __init__(self, octets: memoryview, ends: memoryview) -> None:
        """Raises ValueError if ``ends`` do not fit ``octets``."""
        self._octets = octets
        self._ends = ends.cast("I")
        if len(octets) != (self._ends[-1] if len(self._ends) else 0):
            raise ValueError("texts do not end where their bytes do")

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return str(self._octets[self._ends[place - 1] if place else 0 : self._ends[place]], "utf-8")


def packed_texts(texts: Sequence[str]) -> tuple[bytes, bytes]:
    """``texts`` as the two parts of a :class:`TextArray`."""
    from array import array

    encoded = [text.encode() for text in texts]
    ends, end = array("I"), 0
    for octets in encoded:
        end += len(octets)
        ends.append(end)
    return b"".join(encoded), ends.tobytes()
