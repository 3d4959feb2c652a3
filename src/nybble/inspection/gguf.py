"""GGUF files inspected."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..formats.checkpoint import Checkpoint, MetadataValue
from ..quant.storage import StorageType
from ..quant.tensor import Tensor
from .inspection import Finding, Inspection, LinearKind
from .weights import KEEPS_OUTLIERS, bfloat16_as_fp32, check_floats, check_numbers, in_groups, in_kinds

EMBEDDING, HEAD = "token_embd.weight", "output.weight"

# Where in a block its fp16 factors lie: layouts of block_q4_0 to block_q6_K in ggml-common.h.
FACTORS: Mapping[StorageType, tuple[int, ...]] = {
    StorageType.Q4_0: (0,),
    StorageType.Q4_1: (0, 2),
    StorageType.Q5_0: (0,),
    StorageType.Q5_1: (0, 2),
    StorageType.Q8_0: (0,),
    StorageType.Q4_K: (0, 2),
    StorageType.Q5_K: (0, 2),
    StorageType.Q6_K: (208,),
}
WITH_OFFSETS = (StorageType.Q4_1, StorageType.Q5_1, StorageType.Q4_K, StorageType.Q5_K)


def inspect_gguf(checkpoint: Checkpoint) -> Inspection:
    """What the GGUF model holds. Reads the scales, and the weights of tensors that have none."""
    tensors = checkpoint.tensors
    findings = []
    for tensor in tensors.values():
        findings += _check(tensor)
    matrices = [tensor for name, tensor in tensors.items() if len(tensor.shape) == 2 and name != EMBEDDING]
    embedding = tensors.get(EMBEDDING)
    if HEAD not in tensors and embedding is None:
        reason = f"there is neither {HEAD} nor {EMBEDDING}, so no logits can be computed"
        findings.append(Finding("missing head", checkpoint.path.name, reason, "convert the original model again"))
    parameters = sum(tensor.elements for tensor in tensors.values())
    stored = sum(tensor.stored_bytes for tensor in tensors.values())
    return Inspection(
        path=checkpoint.path,
        format="GGUF",
        architecture=checkpoint.architecture,
        parameters=parameters,
        file_bytes=checkpoint.file_bytes,
        bits_per_weight=8 * stored / max(parameters, 1),
        metadata={key: _shown(value) for key, value in checkpoint.metadata.items()},
        linears=in_kinds(_linear(tensor) for tensor in matrices),
        embedding="none" if embedding is None else f"{embedding.storage.name}, {_size(embedding)}",
        tied=HEAD not in tensors if embedding is not None or HEAD in tensors else None,
        findings=in_groups(findings),
    )


def _linear(tensor: Tensor) -> LinearKind:
    storage = tensor.storage
    is_float = storage.is_float
    return LinearKind(
        name=tensor.name,
        count=1,
        features=tensor.shape[1],
        outputs=tensor.shape[0],
        storage=storage.name,
        bits=int(storage.bits_per_weight) if is_float else int(storage.name[1]),
        block=None if is_float else _block(storage),
        zero_points="none" if is_float else "offsets" if storage in WITH_OFFSETS else "symmetric",
    )


def _block(storage: object) -> int:
    """Codes that share a scale: within the 256 of a K type, scales of their own for 32, or 16."""
    return 16 if storage is StorageType.Q6_K else 32


def _check(tensor: Tensor) -> list[Finding]:
    storage = tensor.storage
    if isinstance(storage, StorageType) and not storage.is_float:
        blocks = tensor.rows.reshape(-1, storage.block_bytes)
        factors = np.concatenate([blocks[:, at : at + 2].copy().view("<f2") for at in FACTORS[storage]])
        return check_numbers(tensor.name, factors, "scales")
    if storage is StorageType.BF16:
        values = bfloat16_as_fp32(tensor.rows)
    else:
        values = tensor.rows.view("<f4" if storage is StorageType.F32 else "<f2")
    return check_floats(tensor.name, values, len(tensor.shape), KEEPS_OUTLIERS)


def _size(tensor: Tensor) -> str:
    return f"{tensor.shape[0]:,} tokens x {tensor.shape[1]:,}"


def _shown(value: MetadataValue) -> str:
    if isinstance(value, list):
        return f"{len(value):,} of {type(value[0]).__name__}" if len(value) > 4 else str(value)
    return str(value)
