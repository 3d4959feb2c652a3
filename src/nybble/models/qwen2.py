"""Qwen2 and Qwen2.5: the shared decoder with biases on q, k and v."""

from __future__ import annotations

from ..formats.checkpoint import Checkpoint
from ..graph.graph import Graph
from .decoder import Decoder


class Qwen2(Decoder):
    """Every projection into a head has a bias."""

    required_biases = frozenset({"attn_q", "attn_k", "attn_v"})


def build(checkpoint: Checkpoint) -> Graph:
    """The graph of a ``qwen2`` checkpoint."""
    return Qwen2(checkpoint).build()
