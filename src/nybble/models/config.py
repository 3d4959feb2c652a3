"""The numbers that describe a transformer decoder, read from a GGUF file's metadata and checked one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import ModelFileError
from ..formats.checkpoint import Checkpoint
from ..quant.blocks import dequantise
from .parameters import Parameters
from .rope import FrequencyFactors, LinearScaling, RopeScaling

FREQUENCY_FACTORS = "rope_freqs.weight"

# Several times what the largest published models have; anything beyond is a damaged or hostile file.
MOST_LAYERS = 1024
MOST_FEATURES = 1 << 20
MOST_HEADS = 4096
LARGEST_HEAD = 4096
MOST_TOKENS = 1 << 22
LONGEST_CONTEXT = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """A pre-norm decoder with grouped-query attention and a SwiGLU feed forward.

    ``hidden`` is the width of the residual stream, ``feed_forward`` that between gate/up and down, ``vocabulary`` the
    number of token ids. ``context_length`` is in tokens. ``tied`` says that the output head is the embedding table.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    context_length: int
    epsilon: float
    rope_base: float
    rope_scaling: RopeScaling | None
    tied: bool

    @classmethod
    def from_gguf(cls, checkpoint: Checkpoint) -> TransformerConfig:
        """Read the configuration; keys as in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

        Raises :class:`~nybble.errors.ModelFileError` for a missing key or a number out of range, and
        :class:`~nybble.errors.UnsupportedFeature` for anything that would change what the model computes in a way
        nybble does not know.
        """
        parameters = Parameters(checkpoint)
        context_length = parameters.whole("context_length", 1, LONGEST_CONTEXT)
        _refuse_features(parameters, context_length)
        hidden = parameters.whole("embedding_length", 1, MOST_FEATURES)
        heads = parameters.whole("attention.head_count", 1, MOST_HEADS)
        kv_heads = parameters.whole("attention.head_count_kv", 1, heads, default=heads)
        if heads % kv_heads:
            key = f"{checkpoint.architecture}.attention.head_count_kv"
            raise ModelFileError(checkpoint.path, key, f"is {kv_heads}; expected a divisor of the {heads} heads")
        config = cls(
            architecture=checkpoint.architecture,
            layers=parameters.whole("block_count", 1, MOST_LAYERS),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=(head_dim := _head_dim(checkpoint, parameters, hidden, heads)),
            feed_forward=parameters.whole("feed_forward_length", 1, MOST_FEATURES),
            vocabulary=_vocabulary(checkpoint, parameters),
            context_length=context_length,
            epsilon=parameters.real("attention.layer_norm_rms_epsilon", 1e-12, 0.1),
            rope_base=parameters.real("rope.freq_base", 1.0, 1e12, default=10000.0),
            rope_scaling=_rope_scaling(checkpoint, parameters, head_dim),
            tied="output.weight" not in checkpoint.tensors,
        )
        parameters.refuse_unknown()
        return config


def _refuse_features(parameters: Parameters, context_length: int) -> None:
    for key in ("expert_count", "expert_used_count"):
        parameters.neutral(key, "mixture of experts", 0)
    window = parameters.whole("attention.sliding_window", 0, LONGEST_CONTEXT, default=0)
    if 0 < window < context_length:
        parameters.unsupported("attention.sliding_window", window, "no sliding window")
    parameters.neutral("attn_logit_softcapping", "softcap on attention logits", 0)
    parameters.neutral("final_logit_softcapping", "softcap on logits", 0)
    parameters.neutral("use_parallel_residual", "parallel residual", False)
    parameters.neutral("attention.clamp_kqv", "clamp of q, k and v", 0)
    parameters.neutral("attention.max_alibi_bias", "ALiBi", 0)
    parameters.neutral("attention.causal", "bidirectional attention", True)
    parameters.neutral("attention.scale", "attention scale of its own", 0)
    for key in ("logit_scale", "residual_scale", "embedding_scale"):
        parameters.neutral(key, key.replace("_", " "), 1)
    parameters.choice("hidden_activation", ("silu", "swiglu"), default="silu")
    for key in ("tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length"):
        parameters.ignore(key)


def _head_dim(checkpoint: Checkpoint, parameters: Parameters, hidden: int, heads: int) -> int:
    key = "attention.key_length"
    head_dim = parameters.whole(key, 2, LARGEST_HEAD, default=max(2, hidden // heads))
    where = f"{checkpoint.architecture}.{key}"
    if where not in checkpoint.metadata and hidden != heads * head_dim:
        raise ModelFileError(
            checkpoint.path, where, f"is missing, and {hidden} features do not divide into {heads} heads"
        )
    if head_dim % 2:
        raise ModelFileError(checkpoint.path, where, f"a head has {head_dim} features; RoPE needs an even number")
    for other in ("attention.value_length", "rope.dimension_count"):
        found = parameters.whole(other, 1, LARGEST_HEAD, default=head_dim)
        if found != head_dim:
            feature = "partial rotary embedding" if other.startswith("rope") else "different key and value lengths"
            parameters.unsupported(other, found, f"no {feature}; each head has {head_dim} features")
    return head_dim


def _vocabulary(checkpoint: Checkpoint, parameters: Parameters) -> int:
    name = "token_embd.weight"
    if name not in checkpoint.tensors:
        raise ModelFileError(checkpoint.path, name, "this tensor is missing")
    vocabulary = checkpoint.tensors[name].shape[0]
    if vocabulary > MOST_TOKENS:
        raise ModelFileError(checkpoint.path, name, f"has {vocabulary} rows; expected at most {MOST_TOKENS}")
    declared = parameters.whole("vocab_size", 1, MOST_TOKENS, default=vocabulary)
    tokens = checkpoint.metadata.get("tokenizer.ggml.tokens")
    listed = len(tokens) if isinstance(tokens, list) else vocabulary
    for key, found in ((f"{checkpoint.architecture}.vocab_size", declared), ("tokenizer.ggml.tokens", listed)):
        if found != vocabulary:
            raise ModelFileError(checkpoint.path, key, f"{found} tokens, but {name} has {vocabulary} rows")
    return vocabulary


def _rope_scaling(checkpoint: Checkpoint, parameters: Parameters, head_dim: int) -> RopeScaling | None:
    kind = parameters.choice("rope.scaling.type", ("none", "linear"), default="linear")
    parameters.neutral("rope.scaling.attn_factor", "attention factor of RoPE scaling", 1)
    older = parameters.real("rope.scale_linear", 0.0, 1e6, default=0.0)
    factor = parameters.real("rope.scaling.factor", 0.0, 1e6, default=older)
    stretched = kind == "linear" and factor not in (0, 1)  # 0 is how files say "none"
    if FREQUENCY_FACTORS not in checkpoint.tensors:
        return LinearScaling(factor) if stretched else None
    if stretched:
        parameters.unsupported(
            "rope.scaling.factor", factor, f"one scaling of RoPE, but there is also {FREQUENCY_FACTORS}"
        )
    return FrequencyFactors(_frequency_factors(checkpoint, head_dim))


def _frequency_factors(checkpoint: Checkpoint, head_dim: int) -> tuple[float, ...]:
    tensor = checkpoint.tensors[FREQUENCY_FACTORS]
    if tensor.shape != (head_dim // 2,) or not tensor.storage.is_float:
        raise ModelFileError(
            checkpoint.path,
            FREQUENCY_FACTORS,
            f"{tensor.storage.name} of shape {tensor.shape}; expected floats of shape {(head_dim // 2,)}",
        )
    factors = dequantise(tensor).reshape(-1)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelFileError(checkpoint.path, FREQUENCY_FACTORS, "holds factors that are not finite and positive")
    return tuple(factors.tolist())
