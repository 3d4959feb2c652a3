"""Opens a model file with the reader its content calls for, whatever it is called."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelFileError
from .checkpoint import Checkpoint
from .gguf import read_gguf
from .gguf_shard import MAGIC
from .mapped_file import MappedFile
from .onnx_folder import open_onnx_checkpoint, open_onnx_folder
from .recognise import describe_content, looks_like_onnx


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the model file at ``path``, or the ONNX model of a folder; the first bytes of a file decide its format.

    Raises :class:`ModelFileError` when it is none that can be read, saying what it is instead, and whatever the reader
    raises.
    """
    if path.is_dir():
        return open_onnx_folder(path)
    mapped = MappedFile(path)
    if mapped.data[: len(MAGIC)] == MAGIC:
        return read_gguf(mapped)
    if looks_like_onnx(mapped.data):
        return open_onnx_checkpoint(mapped)
    raise ModelFileError(path, "", f"this is {describe_content(mapped.data)}; nybble reads GGUF files and ONNX models")
