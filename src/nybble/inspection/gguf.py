"""GGUF files inspected."""

from __future__ import annotations

from ..formats.checkpoint import Checkpoint, MetadataValue
from ..quant.packing_rules import packed_as
from ..quant.storage import StorageType
from ..quant.tensor import Tensor
from ..quant.unpack import factors, floats
from .inspection import Finding, Inspection, LinearKind
from .weights import KEEPS_OUTLIERS, check_floats, check_numbers, in_groups, in_kinds

EMBEDDING, HEAD = "token_embd.weight", "output.weight"


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
    storage, packed = tensor.storage, packed_as(tensor.storage)
    zero_points = "none" if packed.is_float else "offsets" if packed.has_offsets else "symmetric"
    return LinearKind(
        name=tensor.name,
        count=1,
        features=tensor.shape[1],
        outputs=tensor.shape[0],
        storage=storage.name,
        bits=packed.bits if packed.is_float else int(storage.name[1]),
        block=None if packed.is_float else packed.block,
        zero_points=zero_points,
    )


def _check(tensor: Tensor) -> list[Finding]:
    storage = tensor.storage
    assert isinstance(storage, StorageType)  # GGUF has no others
    if storage.is_float:
        return check_floats(tensor.name, floats(storage, tensor.rows), len(tensor.shape), KEEPS_OUTLIERS)
    return check_numbers(tensor.name, factors(storage, tensor.rows), "scales")


def _size(tensor: Tensor) -> str:
    return f"{tensor.shape[0]:,} tokens x {tensor.shape[1]:,}"


def _shown(value: MetadataValue) -> str:
    if isinstance(value, list):
        return f"{len(value):,} of {type(value[0]).__name__}" if len(value) > 4 else str(value)
    return str(value)
