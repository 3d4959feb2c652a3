"""One sequence of tokens and its KV cache: what was computed before is not computed again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _native
from ..errors import ContextOverflow, InvalidParameter, NumericalError
from ..graph.kv_type import KVType
from .greedy import highest_logit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STEP_TOKENS = 512
"""Most tokens of a prompt computed in one step: enough to reuse each weight, little enough memory."""

LOGITS_STEP_TOKENS = 64
"""Most tokens of a step that computes the logits of all of them: each takes a vocabulary's worth of memory."""


@dataclass(frozen=True, slots=True)
class Runner:
    """A native program and the shape of its KV caches and logits. ``lock`` is held during a step."""

    program: _native.Program
    layers: int
    kv_heads: int
    head_dim: int
    kv: KVType
    vocabulary: int
    lock: threading.Lock

    def new_cache(self, capacity: int) -> _native.KVCache:
        """An empty KV cache for ``capacity`` tokens."""
        return _native.KVCache(self.layers, self.kv_heads, self.head_dim, capacity, self.kv.value)


class Session:
    """A sequence of at most ``context_length`` tokens, used by one thread at a time.

    The first ``len(ids)`` positions of the cache always hold what belongs to ``ids``, wherever an interrupt struck;
    positions beyond are cut off before the next step.
    """

    def __init__(self, runner: Runner, context_length: int) -> None:
        self._runner = runner
        self._cache = runner.new_cache(context_length)
        self._ids: list[int] = []
        self.context_length = context_length

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens whose keys and values are cached."""
        return tuple(self._ids)

    @property
    def is_full(self) -> bool:
        """Whether no further token can be computed."""
        return len(self._ids) == self.context_length

    def prefill(self, ids: Sequence[int]) -> tuple[memoryview, int]:
        """Make ``ids`` (at least one) the sequence. Returns the last token's logits, fp32 (vocabulary,), and how many
        tokens of the beginning were reused from what was there before.

        Interrupted or failed, the sequence is left shorter but valid. Raises :class:`ContextOverflow`,
        :class:`NumericalError`; :class:`InvalidParameter` for no tokens.
        """
        self._check_length(ids)
        reused = min(common_prefix(self._ids, ids), len(ids) - 1)
        del self._ids[reused:]
        logits = memoryview(b"")
        for begin in range(reused, len(ids), STEP_TOKENS):
            chunk = list(ids[begin : begin + STEP_TOKENS])
            outputs = [len(chunk) - 1] if begin + STEP_TOKENS >= len(ids) else []
            logits = self._step(chunk, outputs)
        return logits, reused

    def decode(self, token: int) -> memoryview:
        """Append ``token`` and return its logits, fp32 (vocabulary,). Raises :class:`ContextOverflow` when full."""
        if self.is_full:
            raise ContextOverflow(self.context_length + 1, self.context_length)
        return self._step([token], [0])

    def all_logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Make ``ids`` the sequence, computed from the start; the logits of every token, (len(ids), vocabulary).

        Raises as :meth:`prefill`.
        """
        import numpy as np

        self._check_length(ids)
        del self._ids[:]
        logits = np.empty((len(ids), self._runner.vocabulary), np.float32)
        for begin in range(0, len(ids), LOGITS_STEP_TOKENS):
            chunk = list(ids[begin : begin + LOGITS_STEP_TOKENS])
            step = np.frombuffer(self._step(chunk, list(range(len(chunk)))), np.float32)
            logits[begin : begin + len(chunk)] = step.reshape(len(chunk), -1)
        return logits

    def _check_length(self, ids: Sequence[int]) -> None:
        if len(ids) == 0:
            raise InvalidParameter("the prompt is empty: there is nothing to continue")
        if len(ids) > self.context_length:
            raise ContextOverflow(len(ids), self.context_length)

    def _step(self, chunk: list[int], outputs: list[int]) -> memoryview:
        """The logits of ``outputs``, back to back."""
        self._cache.truncate(len(self._ids))
        with self._runner.lock:
            logits = self._runner.program.run_plain(chunk, [(self._cache, len(chunk))], outputs)
        self._ids.extend(chunk)
        width = self._runner.vocabulary
        if any(highest_logit(logits[at : at + width]) is None for at in range(0, len(logits), width)):
            ids = list(self._ids)
            del self._ids[:]
            cause = ", or overflow fp16 in the KV cache (bf16 has room)" if self._runner.kv is KVType.FP16 else ""
            raise NumericalError(
                f"the model computed NaN or infinity, first in {self._first_non_finite(ids)}; "
                f"the weights are damaged{cause}"
            )
        return logits

    def _first_non_finite(self, ids: list[int]) -> str:
        self._cache.truncate(0)
        for begin in range(0, len(ids), STEP_TOKENS):
            chunk = ids[begin : begin + STEP_TOKENS]
            step = (chunk, [(self._cache, len(chunk))], [len(chunk) - 1])
            with self._runner.lock:
                if label := self._runner.program.first_non_finite(*step):
                    return label
                self._runner.program.run_plain(*step)
        return "no op when computed again"


class SessionPool:
    """Lends sessions, each to one borrower at a time. Of those returned it keeps the last one, for the sake of its
    tokens; ``new_session`` makes more when that is not enough.
    """

    def __init__(self, new_session: Callable[[], Session]) -> None:
        self._new_session = new_session
        self._idle: list[Session] = []

    @contextmanager
    def borrowed(self) -> Iterator[Session]:
        """A session that nobody else uses until the end of the block."""
        # Each list operation is atomic: two threads never get the same session.
        try:
            session = self._idle.pop()
        except IndexError:
            session = self._new_session()
        try:
            yield session
        finally:
            self._idle[:] = [session]


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
