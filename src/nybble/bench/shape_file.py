"""A random model as a GGUF file, for engines that read nothing else.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from ..formats.checkpoint import MetadataValue
from ..quant.storage import StorageType
from ..quant.tensor import Tensor
from .job import RandomModel
from .random_model import metadata, random_tensors
from .shapes import Shape, shape_named

ALIGNMENT = 32
"""Bytes to which tensors are aligned, GGUF's default."""

_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_FILE_TYPES = {StorageType.F16: 1, StorageType.Q4_0: 2, StorageType.Q4_1: 3, StorageType.Q8_0: 7}
_NORMAL_TOKEN, _CONTROL_TOKEN = 1, 3


def gguf_storage(model: RandomModel) -> StorageType:
    """The type of GGUF that is nearest to the format of ``model``; all of its blocks are of 32."""
    weights = model.weights
    if weights.bits == 16:
        return StorageType.F16
    if weights.bits == 8:
        return StorageType.Q8_0
    return StorageType.Q4_1 if weights.asymmetric else StorageType.Q4_0


def is_same_format(model: RandomModel) -> bool:
    """Whether that type has the very blocks of ``model``."""
    weights = model.weights
    return weights.bits == 16 or (weights.block == 32 and not (weights.bits == 8 and weights.asymmetric))


def write_gguf(model: RandomModel, path: Path) -> None:
    """Write the shape of ``model`` with random weights of :func:`gguf_storage`, and a vocabulary of made-up words.

    Raises OSError.
    """
    shape = shape_named(model.shape)
    storage = gguf_storage(model)
    tensors = random_tensors(shape, storage, path.name)
    entries = {**metadata(shape), "general.file_type": _FILE_TYPES[storage], **_vocabulary(shape)}
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries)))
        for key, value in entries.items():
            _write_string(file, key)
            _write_value(file, value)
        _write_tensors(file, tensors)


def _vocabulary(shape: Shape) -> Mapping[str, MetadataValue]:
    """As many words as the shape has; some engines fail if none of them is a control token."""
    count = shape.vocabulary
    words = [f"<{token}>" for token in range(count)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm" if shape.architecture == "llama" else "qwen2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [_CONTROL_TOKEN] * 3 + [_NORMAL_TOKEN] * (count - 3),
        "tokenizer.ggml.merges": [f"{words[0]} {words[1]}"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    offset = 0
    for tensor in tensors.values():
        storage = tensor.storage
        assert isinstance(storage, StorageType)
        _write_string(file, tensor.name)
        dimensions = tensor.shape[::-1]  # innermost first
        file.write(struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, storage.ggml_id, offset))
        offset += _aligned(tensor.stored_bytes)
    file.write(bytes(_aligned(file.tell()) - file.tell()))
    for index, tensor in enumerate(tensors.values()):
        # Matrices of one shape are the same; some engines compute what is the same once only.
        shift = index % len(tensor.rows)
        file.write(tensor.rows[shift:].data)
        file.write(tensor.rows[:shift].data)
        file.write(bytes(_aligned(tensor.stored_bytes) - tensor.stored_bytes))


def _write_value(file: BinaryIO, value: MetadataValue) -> None:
    match value:
        case bool():
            file.write(struct.pack("<I?", _BOOL, value))
        case int():
            file.write(struct.pack("<II", _UINT32, value))
        case float():
            file.write(struct.pack("<If", _FLOAT32, value))
        case str():
            file.write(struct.pack("<I", _STRING))
            _write_string(file, value)
        case list():
            _write_list(file, value)


def _write_list(file: BinaryIO, values: Sequence[object]) -> None:
    """Of texts, or of numbers of 32 bits with a sign, as engines expect the kinds of tokens."""
    kind = _STRING if isinstance(values[0], str) else _INT32
    file.write(struct.pack("<IIQ", _ARRAY, kind, len(values)))
    for value in values:
        if isinstance(value, str):
            _write_string(file, value)
        else:
            file.write(struct.pack("<i", value))


def _write_string(file: BinaryIO, text: str) -> None:
    stored = text.encode()
    file.write(struct.pack("<Q", len(stored)) + stored)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
