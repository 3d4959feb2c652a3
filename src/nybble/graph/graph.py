"""A model as data: a flat list of ops over named buffers, plus the tensors they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ..quant.tensor import Tensor
from .ops import Op


@dataclass(frozen=True, slots=True)
class Buffer:
    """One value per row and feature.

    ``per_output`` buffers have a row for each requested output, others one for each token of the step.
    ``quantised_block`` is None for fp32; otherwise the buffer holds int8 codes for weights in blocks of that many
    features, packed as ``layout``, with one scale and up to four outliers in fp32 per row and per run of 128 features.
    A buffer with a ``parent`` is a view of ``width`` features of it, from ``offset``.
    """

    width: int
    per_output: bool = False
    quantised_block: int | None = None
    parent: str | None = None
    offset: int = 0
    layout: str = "panel32"


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A decoder. ``logits`` names the buffer with one row of ``vocabulary`` values per requested output.

    ``inverse_frequencies`` are RoPE's angular steps per position, float64, shape (head_dim / 2,).
    ``layers``, ``kv_heads`` and ``head_dim`` size the KV cache; ``context_length`` is the model's own limit in tokens.
    """

    ops: tuple[Op, ...]
    buffers: Mapping[str, Buffer]
    tensors: Mapping[str, Tensor]
    logits: str
    vocabulary: int
    layers: int
    kv_heads: int
    head_dim: int
    context_length: int
    inverse_frequencies: NDArray[np.float64]


BUFFERS_READ = ("input", "query", "key", "value", "gate", "up", "left", "right", "residual")


# Of each kind of op, the fields that name a buffer it reads.
_FIELDS_READ: dict[Any, tuple[str, ...]] = {
    kind: tuple(name for name in BUFFERS_READ if name in kind.__dataclass_fields__) for kind in get_args(Op)
}


def buffers_read(op: Op) -> tuple[str, ...]:
    """Names of the buffers ``op`` reads, in the order of its fields."""
    return tuple(value for name in _FIELDS_READ[type(op)] if (value := getattr(op, name)) is not None)


def buffer_written(op: Op) -> str | None:
    """Name of the buffer ``op`` writes; None for an op that only writes the KV cache."""
    output: str | None = getattr(op, "output", None)
    return output


def tensors_read(op: Op) -> tuple[str, ...]:
    """Names of the tensors ``op`` reads."""
    single = (getattr(op, name, None) for name in ("table", "weight", "query_norm", "key_norm"))
    stacked = (*getattr(op, "weights", ()), *getattr(op, "biases", ()))
    return (*(name for name in single if isinstance(name, str)), *stacked)
