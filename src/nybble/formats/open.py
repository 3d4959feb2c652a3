"""Opens a model file with the reader its content calls for, whatever it is called."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelFileError
from .checkpoint import Checkpoint
from .gguf import read_gguf
from .gguf_shard import MAGIC
from .mapped_file import MappedFile
from .recognise import describe_content


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the model file at ``path``; its first bytes decide the format.

    Raises :class:`ModelFileError` when it is none that can be read, saying what it is instead, and whatever the reader
    raises.
    """
    mapped = MappedFile(path)
    if mapped.data[: len(MAGIC)] == MAGIC:
        return read_gguf(mapped)
    raise ModelFileError(path, "", f"this is {describe_content(mapped.data)}; nybble reads GGUF files")
