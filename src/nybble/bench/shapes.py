"""Published architectures at their true sizes, from the configurations that the models' authors published.

Standard library only: help pages list the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder; ``tied`` says that the output head is the embedding table."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    context_length: int
    tied: bool


SHAPES: Mapping[str, Shape] = {
    "smollm2-135m": Shape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, True),
    "smollm2-360m": Shape("llama", 32, 960, 15, 5, 64, 2560, 49152, 8192, True),
    "smollm2-1.7b": Shape("llama", 24, 2048, 32, 32, 64, 8192, 49152, 8192, True),
    "tinyllama-1.1b": Shape("llama", 22, 2048, 32, 4, 64, 5632, 32000, 2048, False),
    "llama-3.2-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, True),
    "llama-3.2-3b": Shape("llama", 28, 3072, 24, 8, 128, 8192, 128256, 131072, True),
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 14, 2, 64, 4864, 151936, 32768, True),
    "qwen2.5-1.5b": Shape("qwen2", 28, 1536, 12, 2, 128, 8960, 151936, 32768, True),
    "qwen2.5-3b": Shape("qwen2", 36, 2048, 16, 2, 128, 11008, 151936, 32768, True),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, True),
    "qwen3-1.7b": Shape("qwen3", 28, 2048, 16, 8, 128, 6144, 151936, 40960, True),
    "qwen3-4b": Shape("qwen3", 36, 2560, 32, 8, 128, 9728, 151936, 40960, True),
}


def shape_named(name: str) -> Shape:
    """The shape called ``name``; raises :class:`InvalidParameter` naming those there are."""
    if name not in SHAPES:
        raise InvalidParameter(f"no shape {name!r}; there are {', '.join(SHAPES)}")
    return SHAPES[name]
