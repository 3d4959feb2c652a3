"""Llama and the models that share its shape: TinyLlama, SmolLM2, Mistral without a sliding window."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..formats.checkpoint import Checkpoint
from ..graph.graph import Graph
from .decoder import Decoder


class Llama(Decoder):
    """The shared decoder, with the rows of q and k put back into the order the model was trained in.

    GGUF files of this architecture, but no others, store them for a RoPE that turns neighbouring features
    (2i, 2i + 1); nybble's RoPE turns (i, i + head_dim/2) in every model.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.turns_halves = checkpoint.turns_halves

    def rotation_order(self, heads: int) -> NDArray[np.intp] | None:
        """Per head, first the even rows of the file, then the odd ones."""
        if self.turns_halves:
            return None
        rows = np.arange(heads * self.config.head_dim).reshape(heads, self.config.head_dim // 2, 2)
        return rows.transpose(0, 2, 1).reshape(-1)


def build(checkpoint: Checkpoint) -> Graph:
    """The graph of a ``llama`` checkpoint."""
    return Llama(checkpoint).build()
