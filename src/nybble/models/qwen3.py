"""Qwen3 (dense): the shared decoder with an RMSNorm on each head of q and k before they are rotated."""

from __future__ import annotations

from ..formats.checkpoint import Checkpoint
from ..graph.graph import Graph
from .decoder import Decoder


class Qwen3(Decoder):
    """The head dimension is a parameter of its own here: heads · head_dim need not be the hidden width."""

    def normalised_heads(self, layer: int, part: str, source: str) -> str:
        """One weight of head_dim features normalises all heads of ``part``."""
        tensor = {"query": "attn_q_norm", "key": "attn_k_norm"}[part]
        label, output = f"layer {layer} · {part} norm", f"layer{layer}.normalised_{part}"
        return self.norm(label, f"blk.{layer}.{tensor}", source, output, group=self.config.head_dim)


def build(checkpoint: Checkpoint) -> Graph:
    """The graph of a ``qwen3`` checkpoint."""
    return Qwen3(checkpoint).build()
