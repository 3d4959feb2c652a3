"""safetensors files and folders inspected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFileError
from ..formats.companions import CONFIGURATION, Companions
from ..formats.safetensors import BITS, SafeTensor, SafeTensors
from ..quant.storage import StorageType
from ..quant.unpack import floats
from .inspection import Finding, Inspection, LinearKind
from .weights import KEEPS_OUTLIERS, check_floats, in_groups, in_kinds


def inspect_safetensors(path: Path, files: list[SafeTensors]) -> Inspection:
    """What the model of these files, all shards of one, holds; ``config.json`` beside them tells its architecture."""
    tensors: dict[str, SafeTensor] = {}
    metadata: dict[str, str] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise ModelFileError(file.path, name, "is in another file of the model, too")
            tensors[name] = tensor
        metadata |= file.metadata
    config = Companions(files[0].path.parent).json(CONFIGURATION)
    findings = [found for tensor in tensors.values() for found in _check(tensor)]
    matrices = [tensor for tensor in tensors.values() if len(tensor.shape) == 2]
    embedding = next((tensor for tensor in matrices if "embed" in tensor.name), None)
    head = any(tensor.name.endswith("lm_head.weight") for tensor in matrices)
    if embedding is not None and not head and config.get("tie_word_embeddings") is False:
        reason = "config.json says that the head has weights of its own (tie_word_embeddings), but no lm_head is there"
        findings.append(Finding("missing head", path.name, reason, "fetch all files of the model"))
    parameters = sum(tensor.elements for tensor in tensors.values())
    stored = sum(tensor.octets.nbytes for tensor in tensors.values())
    return Inspection(
        path=path,
        format="safetensors",
        architecture=str(config.get("model_type", "unknown: no config.json beside it")),
        parameters=parameters,
        file_bytes=sum(file.file_bytes for file in files),
        bits_per_weight=8 * stored / max(parameters, 1),
        metadata=metadata | {f"config.{key}": str(value) for key, value in config.items()},
        linears=in_kinds(_linear(tensor) for tensor in matrices if tensor is not embedding),
        embedding="none"
        if embedding is None
        else f"{embedding.dtype}, {embedding.shape[0]:,} x {embedding.shape[1]:,}",
        tied=not head if embedding is not None or head else None,
        findings=in_groups(findings),
    )


def _linear(tensor: SafeTensor) -> LinearKind:
    return LinearKind(tensor.name, 1, tensor.shape[1], tensor.shape[0], tensor.dtype, BITS[tensor.dtype], None, "none")


def _check(tensor: SafeTensor) -> list[Finding]:
    if tensor.dtype == "F64":
        values: NDArray[np.generic] = tensor.octets.view("<f8")
    elif tensor.dtype in ("F32", "F16", "BF16"):
        values = floats(StorageType[tensor.dtype], tensor.octets)
    else:
        return []
    return check_floats(tensor.name, values, len(tensor.shape), KEEPS_OUTLIERS)
