"""What loading a model will take, computed before anything is taken."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _native
from ..errors import InsufficientMemory
from ..graph.footprint import Footprint
from ..graph.kv_type import KVType
from ..machine.memory import MemoryAvailable

RUNTIME_BYTES = 60 << 20
"""Python with its libraries and the kernels' scratch, rounded up: 48 MB resident with a vocabulary of 1000 tokens."""

TOKEN_BYTES = 400
"""What a tokenizer takes for each token of its vocabulary: 380 to 415 bytes with 49,000 to 152,000 of them."""

HUGE_PAGE = 2 << 20
"""Activations of at least as many bytes are kept in whole pages of this size (native/base/memory.cpp)."""

SMALLEST_CONTEXT = 512
"""A default context is not made shorter than this to fit memory."""


@dataclass(frozen=True, slots=True)
class MemoryNeeded:
    """Bytes by purpose; ``kv_cache`` is that of one full sequence of ``context_length`` tokens."""

    weights: int
    kv_cache: int
    activations: int
    runtime: int
    context_length: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.weights + self.kv_cache + self.activations + self.runtime


def memory_needed(model: Footprint, context_length: int, step_tokens: int, kv: KVType = KVType.FP16) -> MemoryNeeded:
    """What ``model`` takes with one sequence of ``context_length`` and steps of up to ``step_tokens`` tokens.

    Raises :class:`~nybble.errors.UnsupportedFeature` for heads that ``kv`` cannot keep.
    """
    kv.check_head(model.head_dim)
    activations = sum(_native.slot_bytes(*slot, step_tokens, 1) for slot in model.slots)
    if activations >= HUGE_PAGE:
        activations = -(-activations // HUGE_PAGE) * HUGE_PAGE
    kv_cache = _native.KVCache.bytes_for(model.layers, model.kv_heads, model.head_dim, context_length, kv.value)
    runtime = RUNTIME_BYTES + TOKEN_BYTES * model.vocabulary
    return MemoryNeeded(model.weight_bytes, kv_cache, activations, runtime, context_length)


def fitting_context(
    model: Footprint,
    requested: int | None,
    default: int,
    step_tokens: int,
    available: MemoryAvailable,
    kv: KVType = KVType.FP16,
) -> MemoryNeeded:
    """The memory for ``requested`` tokens of context, or for ``default``, halved until it fits, when None.

    Raises :class:`InsufficientMemory` with all figures when it does not fit.
    """
    needed = memory_needed(model, default if requested is None else requested, step_tokens, kv)
    while requested is None and needed.total > available.bytes and needed.context_length // 2 >= SMALLEST_CONTEXT:
        needed = memory_needed(model, needed.context_length // 2, step_tokens, kv)
    if needed.total > available.bytes:
        smaller_cache = "" if kv is KVType.INT8 else ", take --kv int8"
        raise InsufficientMemory(
            f"this needs {_mb(needed.total)} (weights {_mb(needed.weights)}, KV cache {_mb(needed.kv_cache)} for "
            f"{needed.context_length} tokens, activations {_mb(needed.activations)}, runtime {_mb(needed.runtime)}) "
            f"but {_mb(available.bytes)} are available ({available.limited_by}); "
            f"lower the context length (--context){smaller_cache} or use a smaller model"
        )
    return needed


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
