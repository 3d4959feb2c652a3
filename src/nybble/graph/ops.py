"""The op vocabulary: every word a model can be described with, on one page.

An op reads and writes buffers by name; each buffer is written by exactly one op. A buffer has one row per token of
the step (or per requested output, after :class:`SelectOutputs`) and ``width`` features. What each word means is
executed by :mod:`nybble.graph.reference`; the native program is tested against it.
``label`` says where in the model an op stands (``layer 3 · attention``) and is what errors and explanations print.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Embed:
    """``output[t] = table[token[t]]``. ``table`` is a tensor of shape (vocabulary, width)."""

    label: str
    table: str
    output: str


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """``output = input / sqrt(mean(input²) + epsilon) · weight`` over each run of ``group`` features.

    ``group`` is the whole width for a layer norm and the head dimension for Qwen3's q/k norms.
    """

    label: str
    input: str
    weight: str
    output: str
    epsilon: float
    group: int


@dataclass(frozen=True, slots=True)
class Linear:
    """``output = input · stack(weights)ᵀ + concat(biases) [+ residual]``.

    ``weights`` are tensors of shape (N_i, K), stacked along N; ``biases`` is empty or one tensor of shape (N_i,) each.
    ``float_activations``: the model asks for fp32 activations here, whatever accuracy the rest is run with.
    """

    label: str
    input: str
    weights: tuple[str, ...]
    output: str
    biases: tuple[str, ...] = ()
    residual: str | None = None
    float_activations: bool = False


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding per head: feature pairs ``(i, i + head_dim/2)`` turn by position · frequency[i]."""

    label: str
    input: str
    output: str
    head_dim: int


@dataclass(frozen=True, slots=True)
class KVAppend:
    """Write the step's keys and values, rounded to fp16, at the end of the layer's KV cache."""

    label: str
    layer: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class RotateAppend:
    """q/k norm (where weights are given), RoPE of q and k, and the KV append, in one op.

    Fused form of :class:`RMSNorm` (per head), :class:`Rope` and :class:`KVAppend`; ``output`` is the rotated query.
    """

    label: str
    layer: int
    query: str
    key: str
    value: str
    output: str
    head_dim: int
    query_norm: str | None = None
    key_norm: str | None = None
    epsilon: float = 0.0


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal softmax(scale · q·kᵀ)·v of each query head against its KV head (GQA: heads / kv_heads share one)."""

    label: str
    layer: int
    query: str
    output: str
    heads: int
    kv_heads: int
    head_dim: int
    scale: float


@dataclass(frozen=True, slots=True)
class SwiGLU:
    """``output = silu(gate) · up``."""

    label: str
    gate: str
    up: str
    output: str


@dataclass(frozen=True, slots=True)
class Add:
    """``output = left + right``."""

    label: str
    left: str
    right: str
    output: str


@dataclass(frozen=True, slots=True)
class SelectOutputs:
    """Keep only the rows whose logits were asked for."""

    label: str
    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Quantise:
    """Round activations to int8 with one scale per row and 128 features.

    The output buffer's ``quantised_block`` is that of the weights it will be multiplied with.
    """

    label: str
    input: str
    output: str


Op = Embed | RMSNorm | Linear | Rope | KVAppend | RotateAppend | Attention | SwiGLU | Add | SelectOutputs | Quantise
