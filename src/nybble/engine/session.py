"""One sequence of tokens and its KV cache: what was computed before is not computed again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import ContextOverflow, NumericalError

STEP_TOKENS = 512
"""Most tokens of a prompt computed in one step: enough to reuse each weight, little enough memory."""


@dataclass(frozen=True, slots=True)
class Runner:
    """A native program and the shape of its KV caches and logits. ``lock`` is held during a step."""

    program: _native.Program
    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    lock: threading.Lock

    def new_cache(self, capacity: int) -> _native.KVCache:
        """An empty KV cache for ``capacity`` tokens."""
        return _native.KVCache(self.layers, self.kv_heads, self.head_dim, capacity)


class Session:
    """A sequence of at most ``context_length`` tokens."""

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

    def prefill(self, ids: Sequence[int]) -> tuple[NDArray[np.float32], int]:
        """Make ``ids`` (at least one) the sequence. Returns the last token's logits (vocabulary,) and how many tokens
        of the beginning were reused from what was there before.

        Interrupted or failed, the sequence is left shorter but valid. Raises :class:`ContextOverflow`,
        :class:`NumericalError`.
        """
        if len(ids) > self.context_length:
            raise ContextOverflow(len(ids), self.context_length)
        reused = min(common_prefix(self._ids, ids), len(ids) - 1)
        self._truncate(reused)
        logits = np.empty(0, np.float32)
        for begin in range(reused, len(ids), STEP_TOKENS):
            chunk = list(ids[begin : begin + STEP_TOKENS])
            outputs = [len(chunk) - 1] if begin + STEP_TOKENS >= len(ids) else []
            logits = self._step(chunk, outputs)
        return logits[0], reused

    def decode(self, token: int) -> NDArray[np.float32]:
        """Append ``token`` and return its logits (vocabulary,). Raises :class:`ContextOverflow` when full."""
        if self.is_full:
            raise ContextOverflow(self.context_length + 1, self.context_length)
        logits: NDArray[np.float32] = self._step([token], [0])[0]
        return logits

    def all_logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Make ``ids`` the sequence, computed from the start; the logits of every token, (len(ids), vocabulary)."""
        if len(ids) > self.context_length:
            raise ContextOverflow(len(ids), self.context_length)
        self._truncate(0)
        chunks = [list(ids[begin : begin + STEP_TOKENS]) for begin in range(0, len(ids), STEP_TOKENS)]
        return np.concatenate([self._step(chunk, list(range(len(chunk)))) for chunk in chunks])

    def _truncate(self, length: int) -> None:
        self._cache.truncate(length)
        del self._ids[length:]

    def _step(self, chunk: list[int], outputs: list[int]) -> NDArray[np.float32]:
        with self._runner.lock:
            logits = self._runner.program.run(chunk, [(self._cache, len(chunk))], outputs)
        self._ids.extend(chunk)
        if not np.isfinite(logits).all():
            ids = list(self._ids)
            self._truncate(0)
            raise NumericalError(
                f"the model computed NaN or infinity, first in {self._first_non_finite(ids)}; "
                "the weights are damaged, or overflow fp16 in the KV cache"
            )
        return logits

    def _first_non_finite(self, ids: list[int]) -> str:
        for begin in range(0, len(ids), STEP_TOKENS):
            chunk = ids[begin : begin + STEP_TOKENS]
            step = (chunk, [(self._cache, len(chunk))], [len(chunk) - 1])
            with self._runner.lock:
                if label := self._runner.program.first_non_finite(*step):
                    return label
                self._runner.program.run(*step)
        return "no op when computed again"


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
