"""A native program as plain data: what it was told, call by call, so that it can be told again without its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import _native

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BUILDING = frozenset(name for name in vars(_native.Program) if not name.startswith("_")) - {
    "run",
    "run_plain",
    "time_ops",
    "first_non_finite",
}
"""Methods that say what a program does."""

_LAST = "set_logits"
_MATRIX, _VECTOR = "matrix", "vector"


class ProgramRecorder:
    """Stands for a :class:`_native.Program` while it is built, and notes every call.

    ``calls`` are ``[method, arguments]`` in JSON's types; a matrix is written as its index in ``matrices``, a vector of
    fp32 as where it lies in ``vectors``.
    """

    def __init__(self, program: _native.Program, matrices: Sequence[_native.PackedMatrix]) -> None:
        self._program = program
        self._index_of = {id(matrix): index for index, matrix in enumerate(matrices)}
        self.calls: list[list[Any]] = []
        self.vectors = bytearray()

    def __getattr__(self, method: str) -> Any:
        if method not in _BUILDING:
            raise AttributeError(method)
        function = getattr(self._program, method)

        def call(*arguments: Any) -> Any:
            self.calls.append([method, [self._plain(argument) for argument in arguments]])
            return function(*arguments)

        return call

    def _plain(self, argument: Any) -> Any:
        if isinstance(argument, _native.PackedMatrix):
            return {_MATRIX: self._index_of[id(argument)]}
        if hasattr(argument, "tobytes"):
            return {_VECTOR: self._stored(argument)}
        return argument

    def _stored(self, vector: NDArray[np.float32]) -> list[int]:
        begin = len(self.vectors)
        self.vectors += vector.astype("<f4", copy=False).tobytes()
        return [begin, len(self.vectors)]


def replay(
    program: _native.Program,
    calls: Sequence[Sequence[Any]],
    matrices: Sequence[_native.PackedMatrix],
    vectors: memoryview,
) -> None:
    """Tell ``program`` what a :class:`ProgramRecorder` noted.

    Nothing noted is trusted: raises ValueError, TypeError, KeyError, IndexError or AttributeError for calls that were
    not made by a recorder; the program itself checks every shape.
    """

    def given(argument: Any) -> Any:
        if not isinstance(argument, Mapping):
            return argument
        if _MATRIX in argument:
            return matrices[argument[_MATRIX]]
        begin, end = argument[_VECTOR]
        if not 0 <= begin <= end <= len(vectors):
            raise ValueError(f"a vector at {begin}..{end} of {len(vectors)} bytes")
        return vectors[begin:end].cast("f")

    if calls[-1][0] != _LAST:
        raise ValueError("a program without logits")
    for method, arguments in calls:
        if method not in _BUILDING:
            raise ValueError(f"no op {method!r}")
        getattr(program, method)(*map(given, arguments))
