"""Models of published shapes with random weights, made in memory.

Speed depends on shapes and formats alone; such a model says nothing sensible.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidParameter
from ..formats.checkpoint import Checkpoint, MetadataValue
from ..quant.storage import BlockStorage, InBlocks, StorageType
from ..quant.tensor import Tensor
from .job import RandomModel, WeightFormat
from .shapes import Shape, shape_named

_RANDOM_ROWS = 64
"""Rows of random bytes that a matrix repeats: making all of them would take longer than packing them."""


def check_random_model(model: RandomModel) -> tuple[Shape, InBlocks]:
    """Its shape and storage; raises :class:`InvalidParameter` for a shape or block that does not exist."""
    return shape_named(model.shape), storage_of(model.weights)


def storage_of(weights: WeightFormat) -> InBlocks:
    """How they are stored; raises :class:`InvalidParameter` if there are no such weights."""
    if weights == WeightFormat(16, 1):
        return StorageType.F16
    try:
        return BlockStorage(weights.bits, weights.block, weights.asymmetric)
    except ValueError as error:
        raise InvalidParameter(
            f"{error}; there are 2, 4 and 8 bits in blocks of 16, 32, 64, 128 and 256, and 16 bits without blocks"
        ) from None


def random_checkpoint(model: RandomModel) -> Checkpoint:
    """A checkpoint of ``model`` that never was a file: matrices of random blocks, norms about one, biases about zero.

    Raises as :func:`check_random_model`.
    """
    shape, storage = check_random_model(model)
    return Checkpoint(Path(model.name), metadata(shape), random_tensors(shape, storage, model.name), 0)


def metadata(shape: Shape) -> dict[str, MetadataValue]:
    """The configuration under GGUF's keys."""
    prefix = shape.architecture
    return {
        "general.architecture": prefix,
        f"{prefix}.block_count": shape.layers,
        f"{prefix}.context_length": shape.context_length,
        f"{prefix}.embedding_length": shape.hidden,
        f"{prefix}.feed_forward_length": shape.feed_forward,
        f"{prefix}.attention.head_count": shape.heads,
        f"{prefix}.attention.head_count_kv": shape.kv_heads,
        f"{prefix}.attention.key_length": shape.head_dim,
        f"{prefix}.attention.value_length": shape.head_dim,
        f"{prefix}.rope.dimension_count": shape.head_dim,
        f"{prefix}.rope.freq_base": 10000.0,
        f"{prefix}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{prefix}.vocab_size": shape.vocabulary,
    }


def random_tensors(shape: Shape, storage: InBlocks, file: str) -> dict[str, Tensor]:
    """All tensors of a model of that shape under GGUF's names, the matrices stored as ``storage``.

    Matrices of one shape share their bytes, so that all of them take little more than the largest.
    """
    tensors: dict[str, Tensor] = {}
    made: dict[tuple[int, int], NDArray[np.uint8]] = {}
    generator = np.random.default_rng(0)

    def matrix(name: str, outputs: int, features: int) -> None:
        rows = made.get((outputs, features))
        if rows is None:
            rows = made[outputs, features] = random_rows(storage, outputs, features, generator)
        tensors[f"{name}.weight"] = Tensor(f"{name}.weight", storage, (outputs, features), rows, file)

    def vector(name: str, length: int, value: float) -> None:
        # Not all the same: some engines leave out a multiplication by one.
        stored = generator.normal(value, 0.1, (1, length)).astype("<f4").view(np.uint8)
        tensors[name] = Tensor(name, StorageType.F32, (length,), stored, file)

    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    matrix("token_embd", shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        vector(f"{at}attn_norm.weight", shape.hidden, 1.0)
        for part, outputs in (("attn_q", query), ("attn_k", key), ("attn_v", key)):
            matrix(f"{at}{part}", outputs, shape.hidden)
            if shape.architecture == "qwen2":
                vector(f"{at}{part}.bias", outputs, 0.0)
        if shape.architecture == "qwen3":
            vector(f"{at}attn_q_norm.weight", shape.head_dim, 1.0)
            vector(f"{at}attn_k_norm.weight", shape.head_dim, 1.0)
        matrix(f"{at}attn_output", shape.hidden, query)
        vector(f"{at}ffn_norm.weight", shape.hidden, 1.0)
        matrix(f"{at}ffn_gate", shape.feed_forward, shape.hidden)
        matrix(f"{at}ffn_up", shape.feed_forward, shape.hidden)
        matrix(f"{at}ffn_down", shape.hidden, shape.feed_forward)
    vector("output_norm.weight", shape.hidden, 1.0)
    if not shape.tied:
        matrix("output", shape.vocabulary, shape.hidden)
    return tensors


def random_rows(storage: InBlocks, rows: int, features: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Random weights of about 1 / sqrt(features) in size, uint8 (rows, bytes per row)."""
    if storage is StorageType.F16:
        numbers = generator.normal(0, features**-0.5, (min(rows, _RANDOM_ROWS), features))
        return np.resize(_halves(numbers).reshape(len(numbers), -1), (rows, 2 * features))
    blocks = -(-features // storage.block_elements)
    made = generator.integers(0, 256, (min(rows, _RANDOM_ROWS), blocks, storage.block_bytes), dtype=np.uint8)
    # In all types used here the scale is the first fp16 of a block, and an offset the second.
    bits = _code_bits(storage)
    size = 4 / (2**bits * features**0.5)
    made[..., 0:2] = _halves(size * generator.uniform(0.75, 1.25, made.shape[:2]))
    if _has_offsets(storage):
        made[..., 2:4] = _halves(-size * 2 ** (bits - 1) * generator.uniform(0.9, 1.1, made.shape[:2]))
    flat = made.reshape(len(made), -1)
    return np.resize(flat, (rows, flat.shape[1]))


def _halves(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    return values.astype("<f2")[..., None].view(np.uint8)


def _code_bits(storage: InBlocks) -> int:
    if isinstance(storage, BlockStorage):
        return storage.bits
    return {StorageType.Q4_0: 4, StorageType.Q4_1: 4, StorageType.Q8_0: 8}[storage]


def _has_offsets(storage: InBlocks) -> bool:
    return storage.has_offsets if isinstance(storage, BlockStorage) else storage is StorageType.Q4_1
