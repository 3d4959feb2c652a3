"""A model's folder as on the hub: ``config.json``, weights in safetensors files, ``tokenizer.json``, a chat template.

Weights are F32, F16 or BF16 there. Matrices are quantised when they are packed: linears to Q4_0, the embedding and the
head, which cost most accuracy and least time, to Q8_0.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError, UnsupportedFeature
from ..quant.storage import StorageType
from ..quant.tensor import Tensor
from .checkpoint import Checkpoint
from .companions import CONFIGURATION, Companions
from .folder_tokenizer import GENERATION_CONFIGURATION, read_tokenizer, recommended_sampling
from .huggingface_config import frequency_factors, read_configuration
from .json_file import read_json
from .mapped_file import MappedFile
from .safetensors import SafeTensor, read_safetensors

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_STORAGES = {"F32": StorageType.F32, "F16": StorageType.F16, "BF16": StorageType.BF16}
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_NAMES = {"model.embed_tokens.weight": _EMBEDDING, "model.norm.weight": "output_norm.weight", "lm_head.weight": _HEAD}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER = re.compile(r"model\.layers\.(\d{1,6})\.(.+)\.(weight|bias)")
_OLD_BUFFER = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def is_safetensors_folder(folder: Path) -> bool:
    """Whether ``folder`` holds a model's weights in safetensors files."""
    return (folder / INDEX).exists() or (folder / SINGLE).exists()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the model in ``folder``. Raises :class:`ModelFileError` for an index of other files."""
    index = folder / INDEX
    if not index.exists():
        return [folder / SINGLE]
    places = read_json(index).get("weight_map")
    names = list(places.values()) if isinstance(places, dict) else []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.isprintable():
            raise ModelFileError(index, "weight_map", f"names {name!r}; expected files of this folder")
    if not names:
        raise ModelFileError(index, "weight_map", "names no file")
    return [folder / name for name in sorted(set(names))]


def open_safetensors_folder(folder: Path) -> Checkpoint:
    """Open the model in ``folder``; reads headers only.

    Raises :class:`ModelFileError` for files that are missing or contradict each other, :class:`UnsupportedFeature` for
    models nybble does not have.
    """
    beside = Companions(folder)
    described, file = beside.json(CONFIGURATION), folder / CONFIGURATION
    if not described:
        raise ModelFileError(file, "", "is missing or empty; it says what the weights beside it are")
    metadata = read_configuration(file, described)
    vocabulary = described.get("vocab_size")
    tokenizer = read_tokenizer(beside, described, vocabulary if type(vocabulary) is int else None)
    if not tokenizer:
        raise ModelFileError(folder / "tokenizer.json", "", "is missing; nybble reads tokenisers in this form only")
    beside.find(INDEX)
    mapped = [MappedFile(path) for path in weight_files(folder)]
    tensors: dict[str, Tensor] = {}
    for one in mapped:
        for name, tensor in read_safetensors(one).tensors.items():
            if not _OLD_BUFFER.fullmatch(name):
                made = _tensor(tensor, str(one.path))
                if made.name in tensors:
                    raise ModelFileError(one.path, name, "is there twice")
                tensors[made.name] = made
    if described.get("tie_word_embeddings") is True:
        tensors.pop(_HEAD, None)
    elif _HEAD not in tensors:
        raise ModelFileError(folder, "lm_head.weight", "this tensor is missing, and tie_word_embeddings is not true")
    factors = frequency_factors(file, described, metadata)
    if factors is not None:
        rows = factors.reshape(1, -1).view(np.uint8)
        tensors["rope_freqs.weight"] = Tensor("rope_freqs.weight", StorageType.F32, factors.shape, rows, str(file))

    def release() -> None:
        for one in mapped:
            one.release()

    return Checkpoint(
        path=folder,
        metadata=metadata | tokenizer | recommended_sampling(beside.json(GENERATION_CONFIGURATION)),
        tensors=tensors,
        file_bytes=sum(one.size for one in mapped),
        release=release,
        files=(*(one.identity for one in mapped), *beside.identities),
        turns_halves=True,
    )


def _tensor(tensor: SafeTensor, file: str) -> Tensor:
    """Under its name in GGUF files, if it has one there, and marked with what it is quantised as."""
    storage = _STORAGES.get(tensor.dtype)
    if storage is None:
        raise UnsupportedFeature(f"{file}: {tensor.name} is {tensor.dtype}; nybble reads {', '.join(_STORAGES)}")
    if not tensor.shape or 0 in tensor.shape:
        raise ModelFileError(file, tensor.name, f"has the shape {tensor.shape}")
    layer = _LAYER.fullmatch(tensor.name)
    name = _NAMES.get(tensor.name, tensor.name)
    if layer is not None and layer[2] in _PARTS:
        name = f"blk.{int(layer[1])}.{_PARTS[layer[2]]}.{layer[3]}"
    rows: NDArray[np.uint8] = tensor.octets.reshape(-1, tensor.shape[-1] * storage.block_bytes)
    target = StorageType.Q8_0 if name in (_EMBEDDING, _HEAD) else StorageType.Q4_0
    divides = len(tensor.shape) == 2 and tensor.shape[1] % target.block_elements == 0
    return Tensor(name, storage, tensor.shape, rows, file, quantised_as=target if divides else None)
