"""Tiny random models, written as the GGUF files llama.cpp's converter would write for them.

``tiny_gguf`` needs numpy and the ``gguf`` package only. :mod:`tests.models.huggingface` loads the same weights into
transformers, the oracle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from nybble.formats.checkpoint import Checkpoint
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ t", "h e", "i n", "Ġt he", "e r", "Ġ a", "o n", "r e")

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names of a layer's parts in transformers and in GGUF."""


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A configuration. ``biases`` are those of q, k, v, o; ``rope_scaling`` is in transformers' words."""

    architecture: str = "llama"
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 96
    vocabulary: int = 300
    context_length: int = 256
    epsilon: float = 1e-5
    rope_base: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    tied: bool = False
    biases: str = ""
    seed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


def random_weights(model: TinyModel) -> dict[str, np.ndarray]:
    """Weights by transformers' names, fp32, scaled so that attention is neither flat nor saturated."""
    generator = np.random.default_rng(model.seed)
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, outputs: int, features: int, gain: float = 1.0) -> None:
        weights[f"{name}.weight"] = generator.normal(0, gain / features**0.5, (outputs, features)).astype(np.float32)

    def norm(name: str, width: int) -> None:
        weights[f"{name}.weight"] = generator.normal(1, 0.2, width).astype(np.float32)

    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    weights["model.embed_tokens.weight"] = generator.normal(0, 1, (model.vocabulary, model.hidden)).astype(np.float32)
    for layer in range(model.layers):
        at = f"model.layers.{layer}."
        norm(f"{at}input_layernorm", model.hidden)
        for part, outputs, features in (("q", query, model.hidden), ("k", key, model.hidden), ("v", key, model.hidden)):
            matrix(f"{at}self_attn.{part}_proj", outputs, features, 1.5)
        matrix(f"{at}self_attn.o_proj", model.hidden, query)
        for part, width in (("q", query), ("k", key), ("v", key), ("o", model.hidden)):
            if part in model.biases:
                bias = generator.normal(0, 0.5, width).astype(np.float32)
                weights[f"{at}self_attn.{part}_proj.bias"] = bias
        if model.architecture == "qwen3":
            norm(f"{at}self_attn.q_norm", model.head_dim)
            norm(f"{at}self_attn.k_norm", model.head_dim)
        norm(f"{at}post_attention_layernorm", model.hidden)
        matrix(f"{at}mlp.gate_proj", model.feed_forward, model.hidden)
        matrix(f"{at}mlp.up_proj", model.feed_forward, model.hidden)
        matrix(f"{at}mlp.down_proj", model.hidden, model.feed_forward)
    norm("model.norm", model.hidden)
    if not model.tied:
        matrix("lm_head", model.vocabulary, model.hidden)
    return weights


def gguf_weights(model: TinyModel, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``weights`` under GGUF's names; for llama with the rows of q and k interleaved, as the converter does."""
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    for layer in range(model.layers):
        for part, short in PARTS.items():
            for kind in ("weight", "bias"):
                names[f"model.layers.{layer}.{part}.{kind}"] = f"blk.{layer}.{short}.{kind}"
    named = {names[name]: value for name, value in weights.items()}
    if model.architecture == "llama":
        for name, value in named.items():
            for part, heads in (("attn_q", model.heads), ("attn_k", model.kv_heads)):
                if f".{part}." in name:
                    halves = value.reshape(heads, 2, model.head_dim // 2, -1)
                    named[name] = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
    if model.rope_scaling and model.rope_scaling["rope_type"] == "llama3":
        named["rope_freqs.weight"] = llama3_factors(model)
    return named


def llama3_factors(model: TinyModel) -> np.ndarray:
    """What each frequency is divided by in Llama 3.1's scaling (its reference code, ``apply_scaling``), fp32."""
    scaling = model.rope_scaling
    assert scaling is not None
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    factors = []
    for pair in range(model.head_dim // 2):
        wavelength = 2 * np.pi * model.rope_base ** (2 * pair / model.head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.asarray(factors, np.float32)


def write_gguf(
    path: Path,
    model: TinyModel,
    tensors: Mapping[str, np.ndarray],
    storage: str = "F32",
    storages: Mapping[str, str] | None = None,
) -> Path:
    """Write ``tensors`` (GGUF names, fp32) to ``path``. Matrices are stored as ``storage``, the rest as F32.

    ``storages`` overrides the type of single parts: ``{"attn_v": "Q6_K", "token_embd": "Q8_0"}``. Types that the gguf
    package cannot quantise (Q4_K, Q5_K, Q6_K) are written as random blocks of the right magnitude instead.
    ``model.extra`` are metadata entries that replace or join those of the configuration; None leaves a key out.
    """
    writer = GGUFWriter(path, model.architecture)
    for key, value in {**metadata(model), **model.extra}.items():
        _add(writer, key, value)
    generator = np.random.default_rng(model.seed + 1)
    for name, value in tensors.items():
        part = name.split(".")[-2]
        kind = (storages or {}).get(part, storage) if value.ndim == 2 else "F32"
        stored = GGMLQuantizationType[kind]
        if kind in ("Q4_K", "Q5_K", "Q6_K"):
            blocks = random_blocks(kind, value.shape, generator)
        else:
            blocks = gguf.quants.quantize(np.ascontiguousarray(value, np.float32), stored)
        writer.add_tensor(name, blocks, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_gguf(
    path: Path, *, storage: str = "F32", storages: Mapping[str, str] | None = None, **configuration: Any
) -> Path:
    """Write a tiny random model to ``path``; keywords are those of :class:`TinyModel` and :func:`write_gguf`."""
    model = TinyModel(**configuration)
    return write_gguf(path, model, gguf_weights(model, random_weights(model)), storage, storages)


def tiny_checkpoint(model: TinyModel) -> Checkpoint:
    """The same model as an opened checkpoint that never was a file; its metadata and tensors are plain dicts."""
    tensors = {name: float_tensor(name, value) for name, value in gguf_weights(model, random_weights(model)).items()}
    entries = {"general.architecture": model.architecture, **metadata(model), **model.extra}
    present = {key: value for key, value in entries.items() if value is not None}
    return Checkpoint(Path("tiny.gguf"), present, tensors, 0)


def float_tensor(name: str, values: np.ndarray) -> Tensor:
    """``values`` stored as F32."""
    stored = np.ascontiguousarray(values, "<f4")
    return Tensor(name, StorageType.F32, values.shape, stored.reshape(-1, values.shape[-1]).view(np.uint8), "tiny.gguf")


def metadata(model: TinyModel) -> dict[str, Any]:
    """The file's metadata: configuration and a byte-level tokenizer with a few merges and three control tokens."""
    arch = model.architecture
    values: dict[str, Any] = {
        "general.name": f"tiny {arch}",
        f"{arch}.block_count": model.layers,
        f"{arch}.context_length": model.context_length,
        f"{arch}.embedding_length": model.hidden,
        f"{arch}.feed_forward_length": model.feed_forward,
        f"{arch}.attention.head_count": model.heads,
        f"{arch}.attention.head_count_kv": model.kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": model.epsilon,
        f"{arch}.rope.freq_base": model.rope_base,
        f"{arch}.vocab_size": model.vocabulary,
    }
    if arch == "llama":
        values[f"{arch}.rope.dimension_count"] = model.head_dim
    if model.head_dim * model.heads != model.hidden or arch == "qwen3":
        values[f"{arch}.attention.key_length"] = model.head_dim
        values[f"{arch}.attention.value_length"] = model.head_dim
    if model.rope_scaling and model.rope_scaling["rope_type"] == "linear":
        values[f"{arch}.rope.scaling.type"] = "linear"
        values[f"{arch}.rope.scaling.factor"] = float(model.rope_scaling["factor"])
    return {**values, **tokenizer(model)}


def tokenizer(model: TinyModel) -> dict[str, Any]:
    """GPT-2 style byte tokens 0..255, then merged tokens, then control tokens, then unused padding."""
    tokens = [*byte_tokens(), *(merge.replace(" ", "") for merge in MERGES)]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    control = len(tokens)
    tokens += CONTROL_TOKENS
    types += [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS)
    if model.vocabulary < len(tokens):
        raise ValueError(f"the tokenizer of a tiny model has {len(tokens)} tokens, more than {model.vocabulary}")
    types += [gguf.TokenType.UNUSED] * (model.vocabulary - len(tokens))
    tokens += [f"[PAD{token}]" for token in range(len(tokens), model.vocabulary)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm" if model.architecture == "llama" else "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": control,
        "tokenizer.ggml.eos_token_id": control + 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def byte_tokens() -> list[str]:
    """One printable character for each byte, as GPT-2 chose them: printable Latin-1 as it is, the rest from U+0100."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def random_blocks(kind: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Random bytes that are valid blocks of ``kind``, with scales that make the weights about 1 / sqrt(K) in size."""
    # Byte offsets of the fp16 scales in a block, the block's bytes, and a typical |weight| for a scale of 1.
    scale_offsets, size, magnitude = {
        "Q4_K": ((0, 2), 144, 200.0),
        "Q5_K": ((0, 2), 176, 400.0),
        "Q6_K": ((208,), 210, 1000.0),
    }[kind]
    rows, columns = shape
    blocks = generator.integers(0, 256, (rows, columns // 256, size), dtype=np.uint8)
    for offset in scale_offsets:
        scale = generator.uniform(0.5, 1.5, (rows, columns // 256, 1)) / (magnitude * columns**0.5)
        blocks[..., offset : offset + 2] = scale.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            (writer.add_uint32 if 0 <= value < 1 << 32 else writer.add_int64)(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
