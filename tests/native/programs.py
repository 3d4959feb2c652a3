"""Native programs of a few ops, fed with the rows of F32 tables: token i is row i of each table."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from nybble import _native
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor

ISAS = tuple(_native.available_isas())
UNIT = 2.0**-24
"""The largest relative error of one rounding to fp32."""

MARGIN = 5
"""Features on either side of a guarded view."""


def share(count: int) -> int:
    """``count``, or NYBBLE_TEST_SHARE percent of it, which is for emulated machines."""
    return max(1, count * int(os.environ.get("NYBBLE_TEST_SHARE", "100")) // 100)


def sweep(examples: int) -> settings:
    """The same ``examples`` cases in every run, or the :func:`share` of them."""
    examples = share(examples)
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=slow)


@cache
def pool(threads: int = 1) -> _native.ThreadPool:
    return _native.ThreadPool(threads)


def float_tensor(values: NDArray[np.floating], storage: StorageType = StorageType.F32) -> Tensor:
    """``values`` (N, K) rounded to a float ``storage``, bf16 towards zero."""
    values = np.ascontiguousarray(values, np.float32)
    if storage is StorageType.F16:
        stored = values.astype("<f2").view(np.uint8)
    elif storage is StorageType.BF16:
        stored = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    else:
        stored = values.view(np.uint8)
    return Tensor("weight", storage, values.shape, stored.reshape(len(values), -1), "toy.gguf")


def pack(*parts: Tensor, threads: int = 1, layout: str = "panel32") -> _native.PackedMatrix:
    """``parts`` stacked along N in memory of their own; fails if a scale is not finite."""
    n, k = sum(part.shape[0] for part in parts), parts[0].shape[1]
    wide = parts[0].wide_scales
    memory = _native.WeightMemory(_native.packed_bytes(parts[0].storage.name, n, k, wide, layout))
    rows = [(part.storage.name, part.arrays) for part in parts]
    matrix, not_finite = _native.pack(memory, 0, rows, k, pool(threads), wide, layout)
    assert not_finite is None
    return matrix


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """For comparisons that tell -0 from 0 and NaN from NaN."""
    return np.ascontiguousarray(values).view(np.uint32)


class Rung(Exception):
    """What an alarm of :func:`alarm` raises."""


@contextmanager
def alarm() -> Iterator[Callable[[float], None]]:
    """What sets an alarm in so many seconds, which raises :class:`Rung` as Ctrl-C would raise KeyboardInterrupt."""

    def ring(*_: object) -> None:
        raise Rung

    def ring_in(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield ring_in
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class OpProgram:
    """A program of ops over ``rows`` tokens, on one ``isa`` or one for each thread.

    Views are numbers, as in :class:`nybble._native.Program`.
    """

    def __init__(
        self,
        rows: int,
        isa: str | Sequence[str],
        threads: int | _native.ThreadPool = 1,
        layers: int = 0,
        kv_heads: int = 1,
        head_dim: int = 2,
        inverse_frequencies: Sequence[float] | None = None,
    ) -> None:
        frequencies = [0.0] * (head_dim // 2) if inverse_frequencies is None else list(inverse_frequencies)
        self.rows = rows
        self.cache_shape = (layers, kv_heads, head_dim)
        native_pool = pool(threads) if isinstance(threads, int) else threads
        isas = [isa] * native_pool.size if isinstance(isa, str) else isa
        self.native = _native.Program(native_pool, isas, rows, *self.cache_shape, frequencies)
        self._slot_of_guarded: dict[int, int] = {}
        self._margin = 0

    def new(self, width: int, block: int = 0, per_output: bool = False, layout: str = "panel32") -> int:
        """A view of a whole new slot."""
        return self.native.view(self.native.slot(width, per_output, block, layout), 0, width)

    def given(self, *parts: NDArray[np.floating]) -> list[int]:
        """Views of neighbouring features of one slot, the i-th of which starts as ``parts[i]``."""
        return self._given(parts)[1]

    def guarded(self, values: NDArray[np.floating]) -> int:
        """A view that starts as ``values``, with NaN on either side: a vector that is read or stored too far shows."""
        margin = np.full((self.rows, MARGIN), np.nan)
        slot, views = self._given((margin, values, margin))
        self._slot_of_guarded[views[1]] = slot
        return views[1]

    def _given(self, parts: Sequence[NDArray[np.floating]]) -> tuple[int, list[int]]:
        whole = np.concatenate(parts, axis=1).astype(np.float32)
        slot = self.native.slot(whole.shape[1], False, 0)
        self.native.embed("embed", pack(float_tensor(whole)), self.native.view(slot, 0, whole.shape[1]))
        starts = np.cumsum([0, *(part.shape[1] for part in parts)]).tolist()
        views = [self.native.view(slot, start, part.shape[1]) for start, part in zip(starts, parts, strict=False)]
        return slot, views

    def outputs(self, view: int, width: int) -> None:
        """Make ``view`` what :meth:`run` returns; of a guarded one it checks the guards."""
        if view in self._slot_of_guarded:
            self._margin = MARGIN
            width += 2 * MARGIN
            view = self.native.view(self._slot_of_guarded[view], 0, width)
        selected = self.new(width, per_output=True)
        self.native.select_outputs("select", view, selected)
        self.native.set_logits(selected)

    def cache(self, capacity: int = 0, kv: str = "fp16") -> _native.KVCache:
        return _native.KVCache(*self.cache_shape, capacity or self.rows, kv)

    def run(self, tokens: Sequence[int] | None = None, cache: _native.KVCache | None = None) -> NDArray[np.float32]:
        """The outputs of all rows of one step of one sequence; ``tokens`` are rows of the tables, None for all."""
        tokens = range(self.rows) if tokens is None else tokens
        cache = cache or self.cache(len(tokens))
        found = self.native.run(list(tokens), [(cache, len(tokens))], list(range(len(tokens))))
        if not self._margin:
            return found
        margins = found[:, : self._margin], found[:, -self._margin :]
        assert np.isnan(margins).all(), "wrote beside its output"
        return found[:, self._margin : -self._margin]
