"""GGUF: the file format of the ggml family of engines, read without copying.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelFileError
from .checkpoint import Checkpoint
from .gguf_shard import Shard, read_shard
from .gguf_split import all_tensors, check_agreement, shard_names
from .mapped_file import MappedFile


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF model of one file, or of several when ``path`` is any shard of a split model.

    Tensors view the mapped files, which stay mapped as long as any of them lives. See :class:`MappedFile` for what
    happens when a file is cut meanwhile.

    Raises :class:`ModelFileError` or :class:`UnsupportedFeature`; reads no tensor's bytes.
    """
    return read_gguf(MappedFile(path))


def read_gguf(mapped: MappedFile) -> Checkpoint:
    """As :func:`open_gguf`, of a file that is mapped already."""
    opened = read_shard(mapped)
    names = shard_names(opened)
    shards: tuple[Shard, ...] = (opened,)
    if names is not None:
        shards = tuple(
            opened if place == names.opened else read_shard(MappedFile(path)) for place, path in enumerate(names.paths)
        )
        check_agreement(shards)
    metadata = shards[0].metadata
    if not metadata.get("general.architecture"):
        raise ModelFileError(
            shards[0].mapped.path, "general.architecture", "is missing, so the model cannot be interpreted"
        )
    files = tuple(shard.mapped for shard in shards)

    def release() -> None:
        for file in files:
            file.release()

    size, identities = sum(file.size for file in files), tuple(file.identity for file in files)
    return Checkpoint(mapped.path, metadata, all_tensors(shards), size, release, identities)
