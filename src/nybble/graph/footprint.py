"""What decides how much memory a model takes."""

from __future__ import annotations

from typing import NamedTuple


class Footprint(NamedTuple):
    """``weight_bytes`` of packed weights, the shape of a KV cache, and the memory of activations: (features a row,
    whether rows are those of outputs, block of int8 activations or 0, their layout) of each slot.
    """

    weight_bytes: int
    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    slots: tuple[tuple[int, bool, int, str], ...]
