"""A model of any format, inspected."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelFileError
from ..formats.gguf import read_gguf
from ..formats.gguf_shard import MAGIC
from ..formats.mapped_file import MappedFile
from ..formats.onnx import read_onnx
from ..formats.onnx_folder import decoder_file, has_decoder, model_type
from ..formats.recognise import describe_content, looks_like_onnx, looks_like_safetensors
from ..formats.safetensors import read_safetensors
from ..formats.safetensors_folder import is_safetensors_folder, weight_files
from .gguf import inspect_gguf
from .inspection import Inspection
from .onnx import inspect_onnx
from .safetensors import inspect_safetensors


def inspect(path: Path) -> Inspection:
    """What the GGUF, ONNX or safetensors model at ``path``, a file or its folder, holds, and what is odd about it.

    Raises :class:`~nybble.errors.NybbleError` for what is no such model, or a damaged one.
    """
    if path.is_dir() and is_safetensors_folder(path) and not has_decoder(path):
        return inspect_safetensors(path, [read_safetensors(MappedFile(file)) for file in weight_files(path)])
    mapped = MappedFile(model_file(path))
    if mapped.data[: len(MAGIC)] == MAGIC:
        return inspect_gguf(read_gguf(mapped))
    if looks_like_safetensors(mapped.data):
        return inspect_safetensors(mapped.path, [read_safetensors(mapped)])
    if looks_like_onnx(mapped.data):
        folder = mapped.path.parent
        return inspect_onnx(read_onnx(mapped), model_type(folder) or "unknown: no configuration beside it")
    problem = f"this is {describe_content(mapped.data)}; nybble inspects GGUF, ONNX and safetensors models"
    raise ModelFileError(path, "", problem)


def model_file(path: Path) -> Path:
    """The file of the model at ``path``, itself or the graph in its folder."""
    return decoder_file(path) if path.is_dir() else path
