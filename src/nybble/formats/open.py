"""Opens a model file with the reader its content calls for, whatever it is called."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelFileError
from .checkpoint import Checkpoint
from .gguf import read_gguf
from .gguf_shard import MAGIC
from .mapped_file import MappedFile
from .onnx_folder import has_decoder, open_onnx_checkpoint, open_onnx_folder
from .recognise import describe_content, looks_like_onnx, looks_like_safetensors
from .safetensors_folder import SINGLE, is_safetensors_folder, open_safetensors_folder


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the model file at ``path``, or the ONNX or safetensors model of a folder.

    The first bytes of a file decide its format. A folder with a graph is an ONNX model, whatever else it has.

    Raises :class:`ModelFileError` when it is none that can be read, saying what it is instead, and whatever the reader
    raises.
    """
    if path.is_dir():
        return _open_folder(path)
    mapped = MappedFile(path)
    if mapped.data[: len(MAGIC)] == MAGIC:
        return read_gguf(mapped)
    if looks_like_onnx(mapped.data):
        return open_onnx_checkpoint(mapped)
    if looks_like_safetensors(mapped.data) and path.name == SINGLE:
        return open_safetensors_folder(path.parent)
    raise ModelFileError(
        path,
        "",
        f"this is {describe_content(mapped.data)}; nybble reads GGUF files, ONNX models and folders of safetensors",
    )


def _open_folder(path: Path) -> Checkpoint:
    """Open the ONNX or safetensors model in the folder ``path``; raises as :func:`open_checkpoint`."""
    if has_decoder(path):
        return open_onnx_folder(path)
    if is_safetensors_folder(path):
        return open_safetensors_folder(path)
    problem = f"is a folder without a model: no .onnx file, and no {SINGLE}; give the model file inside it"
    raise ModelFileError(path, "", problem)
