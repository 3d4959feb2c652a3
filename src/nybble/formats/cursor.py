"""The one way bytes of a model file are read: a cursor that cannot leave its range and cannot wrap.

Every reader of nybble parses through :class:`Cursor`. Numbers are little-endian. Nothing is allocated from a length
the file claims before that length is checked against the bytes that are really there.
"""

from __future__ import annotations

import struct
from typing import NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import ModelFileError

U64_MAXIMUM = 2**64 - 1

_I8 = struct.Struct("<b")
_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_F32 = struct.Struct("<f")
_F64 = struct.Struct("<d")


class Cursor:
    """Reads ``data[position:end]`` forwards.

    ``data`` is the entire file as a uint8 memoryview, so ``position`` is always an offset in the file and is what
    errors name. ``file`` is what errors call the file. ``boundary`` says, in errors, what it means to reach ``end``.
    Every method takes ``what``, the field being read, for its error.

    Raises :class:`ModelFileError` when a read would leave the range or a value is not what its type allows.
    """

    __slots__ = ("boundary", "data", "end", "file", "position")

    def __init__(
        self,
        data: memoryview,
        file: str,
        position: int = 0,
        end: int | None = None,
        boundary: str = "the file ends",
    ) -> None:
        self.data = data
        self.file = file
        self.position = position
        self.end = len(data) if end is None else end
        self.boundary = boundary
        if not 0 <= self.position <= self.end <= len(data):
            raise ValueError(f"range {position}..{end} is not inside {len(data)} bytes")

    @property
    def remaining(self) -> int:
        """Bytes left to read."""
        return self.end - self.position

    def fail(self, what: str, problem: str, position: int | None = None) -> NoReturn:
        """Raise :class:`ModelFileError` for the field ``what`` at ``position`` (by default, here)."""
        raise ModelFileError(self.file, f"{what} (byte {self.position if position is None else position})", problem)

    def skip(self, count: int, what: str) -> int:
        """Move over ``count`` bytes; returns the position they start at."""
        start = self.position
        if not 0 <= count <= self.end - start:
            self.fail(
                what, f"needs {count} bytes but {self.boundary} after {self.end - start} more; truncated or damaged"
            )
        self.position = start + count
        return start

    def align(self, multiple: int, what: str) -> None:
        """Move to the next offset in the file that is a multiple of ``multiple``."""
        self.skip(-self.position % multiple, what)

    def sub_range(self, count: int, what: str) -> Cursor:
        """A cursor over the next ``count`` bytes, which this cursor moves over."""
        start = self.skip(count, what)
        return Cursor(self.data, self.file, start, start + count, f"{what} ends")

    def u8(self, what: str) -> int:
        """An unsigned 8-bit integer."""
        return self.data[self.skip(1, what)]

    def i8(self, what: str) -> int:
        """A signed 8-bit integer."""
        return int(_I8.unpack_from(self.data, self.skip(1, what))[0])

    def u16(self, what: str) -> int:
        """An unsigned 16-bit integer."""
        return int(_U16.unpack_from(self.data, self.skip(2, what))[0])

    def i16(self, what: str) -> int:
        """A signed 16-bit integer."""
        return int(_I16.unpack_from(self.data, self.skip(2, what))[0])

    def u32(self, what: str) -> int:
        """An unsigned 32-bit integer."""
        return int(_U32.unpack_from(self.data, self.skip(4, what))[0])

    def i32(self, what: str) -> int:
        """A signed 32-bit integer."""
        return int(_I32.unpack_from(self.data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        """An unsigned 64-bit integer."""
        return int(_U64.unpack_from(self.data, self.skip(8, what))[0])

    def i64(self, what: str) -> int:
        """A signed 64-bit integer."""
        return int(_I64.unpack_from(self.data, self.skip(8, what))[0])

    def f32(self, what: str) -> float:
        """An IEEE binary32; NaN and infinities pass."""
        return float(_F32.unpack_from(self.data, self.skip(4, what))[0])

    def f64(self, what: str) -> float:
        """An IEEE binary64; NaN and infinities pass."""
        return float(_F64.unpack_from(self.data, self.skip(8, what))[0])

    def boolean(self, what: str) -> bool:
        """One byte that is 0 or 1."""
        value = self.u8(what)
        if value > 1:
            self.fail(what, f"a boolean is 0 or 1, found {value}", self.position - 1)
        return value == 1

    def raw(self, count: int, what: str) -> memoryview:
        """The next ``count`` bytes, not copied."""
        start = self.skip(count, what)
        return self.data[start : start + count]

    def text(self, count: int, what: str, limit: int) -> str:
        """The next ``count`` bytes as UTF-8; refused when longer than ``limit`` bytes or not valid UTF-8."""
        if count > limit:
            self.fail(what, f"a string of {count} bytes is longer than the {limit} allowed here")
        start = self.skip(count, what)
        try:
            return str(self.data[start : start + count], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(what, f"not valid UTF-8 ({error.reason})", start + error.start)

    def prefixed_text(self, what: str, limit: int) -> str:
        """A u64 length in bytes, then that much UTF-8."""
        return self.text(self.u64(what), what, limit)

    def prefixed_texts(self, count: int, what: str, limit: int) -> list[str]:
        """``count`` strings, each a u64 length and that much UTF-8.

        The same checks as :meth:`prefixed_text` in a loop without calls: vocabularies have 10⁵ entries.
        """
        self._check_count(count, 8, what)
        data, position, end = self.data, self.position, self.end
        unpack = _U64.unpack_from
        texts: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                if start > end:
                    break
                stop = start + unpack(data, position)[0]
                if stop > end or stop - start > limit:
                    break
                texts.append(str(data[start:stop], "utf-8"))
                position = stop
        except UnicodeDecodeError:
            pass
        self.position = position
        if len(texts) < count:
            # The slow path meets the same bytes again and raises with the element's number.
            self.prefixed_text(f"{what}[{len(texts)}]", limit)
        return texts

    def numbers(self, dtype: DTypeLike, count: int, what: str) -> NDArray[np.generic]:
        """``count`` numbers of a little-endian ``dtype`` as a read-only view, shape (count,)."""
        size = np.dtype(dtype).itemsize
        self._check_count(count, size, what)
        start = self.skip(count * size, what)
        return np.frombuffer(self.data, dtype, count, start)

    def _check_count(self, count: int, smallest: int, what: str) -> None:
        if count * smallest > self.remaining:
            self.fail(
                what,
                f"{count} elements of at least {smallest} bytes each, but {self.boundary} after {self.remaining} more; "
                "truncated or damaged",
            )

    def multiply(self, what: str, *factors: int, limit: int = U64_MAXIMUM) -> int:
        """The product of ``factors``, refused above ``limit``: sizes must not wrap in whatever reads them next."""
        product = 1
        for factor in factors:
            product *= factor
            if not 0 <= product <= limit:
                self.fail(what, f"the product {' x '.join(map(str, factors))} is not within 0..{limit}")
        return product

    def add(self, what: str, *terms: int, limit: int = U64_MAXIMUM) -> int:
        """The sum of ``terms``, refused above ``limit``."""
        total = sum(terms)
        if not 0 <= total <= limit:
            self.fail(what, f"the sum {' + '.join(map(str, terms))} is not within 0..{limit}")
        return total
