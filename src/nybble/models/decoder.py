"""The decoder that Llama, Qwen and their kin share; an architecture overrides what it does differently."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..formats.checkpoint import Checkpoint
from ..graph.check import check
from ..graph.graph import Buffer, Graph
from ..graph.ops import Add, Attention, Embed, KVAppend, Linear, Op, RMSNorm, Rope, SwiGLU
from .config import FREQUENCY_FACTORS, TransformerConfig
from .rope import inverse_frequencies
from .weights import Weights


class Decoder:
    """Builds the graph of a pre-norm transformer: RMSNorm, grouped-query attention with RoPE, SwiGLU feed forward.

    Methods append ops in execution order and return the name of the buffer they wrote. Tensor names are GGUF's.
    """

    required_biases: ClassVar[frozenset[str]] = frozenset()
    """Projections that must have a bias. Any of attn_q, attn_k, attn_v and attn_output may have one."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = TransformerConfig.from_gguf(checkpoint)
        self.weights = Weights(checkpoint, elsewhere=(FREQUENCY_FACTORS,))
        self.ops: list[Op] = []
        self.buffers: dict[str, Buffer] = {}

    def build(self) -> Graph:
        """The whole graph, checked; every tensor of the file is in it or refused."""
        config = self.config
        stream = self.embedding()
        for layer in range(config.layers):
            stream = self.attention(layer, stream)
            stream = self.feed_forward(layer, stream)
        logits = self.head(stream)
        self.weights.refuse_leftovers()
        return check(
            Graph(
                ops=tuple(self.ops),
                buffers=self.buffers,
                tensors=self.weights.taken,
                logits=logits,
                vocabulary=config.vocabulary,
                layers=config.layers,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                context_length=config.context_length,
                inverse_frequencies=inverse_frequencies(config.head_dim, config.rope_base, config.rope_scaling),
            )
        )

    def rotation_order(self, heads: int) -> NDArray[np.intp] | None:
        """Order in which to take the rows of q or k so that RoPE pairs (i, i + head_dim/2); None: as they are."""
        return None

    def normalised_heads(self, layer: int, part: str, source: str) -> str:
        """Hook between the projection and the rotation of ``part`` (``query`` or ``key``)."""
        return source

    def embedding(self) -> str:
        """The token embedding, the start of the residual stream."""
        table = self.weights.matrix("token_embd.weight", self.config.vocabulary, self.config.hidden)
        output = self.buffer("embedding", self.config.hidden)
        self.ops.append(Embed("embedding", table, output))
        return output

    def attention(self, layer: int, stream: str) -> str:
        """Norm, q/k/v, rotation, KV append, attention and output projection, added to ``stream``."""
        config = self.config
        at, label = f"layer{layer}.", f"layer {layer} · "
        normed = self.norm(f"{label}attention norm", f"blk.{layer}.attn_norm", stream, f"{at}attention_norm")
        query_width, key_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        query = self.projection(layer, "query", "attn_q", normed, query_width, self.rotation_order(config.heads))
        key = self.projection(layer, "key", "attn_k", normed, key_width, self.rotation_order(config.kv_heads))
        value = self.projection(layer, "value", "attn_v", normed, key_width)
        query = self.rotated(layer, "query", self.normalised_heads(layer, "query", query))
        key = self.rotated(layer, "key", self.normalised_heads(layer, "key", key))
        self.ops.append(KVAppend(f"{label}KV append", layer, key, value))
        mixed = self.buffer(f"{at}attention", query_width)
        heads = (config.heads, config.kv_heads, config.head_dim)
        self.ops.append(Attention(f"{label}attention", layer, query, mixed, *heads, scale=config.head_dim**-0.5))
        output = self.projection(layer, "output", "attn_output", mixed, config.hidden)
        return self.added(f"{label}attention residual", stream, output, f"{at}attention_residual")

    def feed_forward(self, layer: int, stream: str) -> str:
        """Norm, gate and up, SwiGLU and down, added to ``stream``."""
        width = self.config.feed_forward
        at, label = f"layer{layer}.", f"layer {layer} · feed-forward "
        normed = self.norm(f"{label}norm", f"blk.{layer}.ffn_norm", stream, f"{at}feed_forward_norm")
        gate = self.linear(f"{label}gate", f"blk.{layer}.ffn_gate", normed, f"{at}gate", width)
        up = self.linear(f"{label}up", f"blk.{layer}.ffn_up", normed, f"{at}up", width)
        activated = self.buffer(f"{at}activated", width)
        self.ops.append(SwiGLU(f"{label}activation", gate, up, activated))
        down = self.linear(f"{label}down", f"blk.{layer}.ffn_down", activated, f"{at}down", self.config.hidden)
        return self.added(f"{label}residual", stream, down, f"{at}feed_forward_residual")

    def head(self, stream: str) -> str:
        """The last norm and the logits."""
        normed = self.norm("output norm", "output_norm", stream, "output_norm")
        tensor = "token_embd" if self.config.tied else "output"
        return self.linear("output head", tensor, normed, "logits", self.config.vocabulary)

    def projection(
        self, layer: int, part: str, tensor: str, source: str, width: int, order: NDArray[np.intp] | None = None
    ) -> str:
        """A linear of the attention, with a bias where the file has one, its rows taken in ``order``."""
        name = f"blk.{layer}.{tensor}"
        has_bias = tensor in self.required_biases or f"{name}.bias" in self.weights
        bias = self.weights.vector(f"{name}.bias", width) if has_bias else None
        label = f"layer {layer} · attention {part}"
        output = self.linear(label, name, source, f"layer{layer}.{part}", width, bias)
        if order is not None:
            self.weights.reorder(f"{name}.weight", order)
            if bias is not None:
                self.weights.reorder(bias, order)
        return output

    def rotated(self, layer: int, part: str, source: str) -> str:
        """RoPE of the heads in ``source``."""
        output = self.buffer(f"layer{layer}.rotated_{part}", self.buffers[source].width)
        self.ops.append(Rope(f"layer {layer} · {part} rotation", source, output, self.config.head_dim))
        return output

    def linear(self, label: str, tensor: str, source: str, output: str, width: int, bias: str | None = None) -> str:
        """A linear of ``width`` outputs whose weight is ``tensor``.weight."""
        weight = self.weights.matrix(f"{tensor}.weight", width, self.buffers[source].width)
        biases = () if bias is None else (bias,)
        self.ops.append(Linear(label, source, (weight,), self.buffer(output, width), biases))
        return output

    def norm(self, label: str, tensor: str, source: str, output: str, group: int | None = None) -> str:
        """An RMSNorm over runs of ``group`` features, by default all of them, weighted by ``tensor``.weight."""
        width = self.buffers[source].width
        group = group or width
        weight = self.weights.vector(f"{tensor}.weight", group)
        self.ops.append(RMSNorm(label, source, weight, self.buffer(output, width), self.config.epsilon, group))
        return output

    def added(self, label: str, left: str, right: str, output: str) -> str:
        """The sum of two buffers."""
        self.ops.append(Add(label, left, right, self.buffer(output, self.buffers[left].width)))
        return output

    def buffer(self, name: str, width: int) -> str:
        """Declare a buffer and return its name."""
        self.buffers[name] = Buffer(width)
        return name
