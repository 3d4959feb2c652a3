"""One GGUF file: its header, metadata and tensors. A model is one of these, or several (see gguf_split)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UnsupportedFeature
from ..quant.tensor import Tensor
from .checkpoint import MetadataValue
from .cursor import Cursor
from .gguf_metadata import read_metadata
from .gguf_tensors import read_tensors
from .mapped_file import MappedFile
from .recognise import describe_content

MAGIC = b"GGUF"
HEADER_BYTES = 4 + 4 + 8 + 8  # magic, version, number of tensors, number of metadata entries
MAXIMUM_TABLE_BYTES = 128 << 20  # header, metadata and tensor table; the largest known need about half
DEFAULT_ALIGNMENT = 32
SMALLEST_ALIGNMENT = 8
LARGEST_ALIGNMENT = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """One mapped file and what its tables say."""

    mapped: MappedFile
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, Tensor]


def read_shard(mapped: MappedFile) -> Shard:
    """Read the tables of a little-endian GGUF file of version 2 or 3.

    Raises :class:`ModelFileError` when the file is not GGUF or is malformed, :class:`UnsupportedFeature` for another
    version, byte order or storage type.
    """
    file, data = str(mapped.path), mapped.data
    cursor = Cursor(data, file, boundary=f"the file of {mapped.size} bytes ends")
    if data[:4] != MAGIC:
        cursor.fail("magic", f"not a GGUF file: this is {describe_content(data)}")
    if mapped.size < HEADER_BYTES:
        cursor.fail("header", f"only {mapped.size} of its {HEADER_BYTES} bytes are there; the download did not finish")
    cursor.skip(4, "magic")
    _check_version(file, cursor.u32("version"))
    tensor_count = cursor.u64("number of tensors")
    key_count = cursor.u64("number of metadata entries")
    if mapped.size > MAXIMUM_TABLE_BYTES:
        boundary = f"the {MAXIMUM_TABLE_BYTES} bytes that nybble allows for metadata end"
        cursor = Cursor(data, file, cursor.position, MAXIMUM_TABLE_BYTES, boundary)
    metadata = read_metadata(cursor, key_count)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if (
        not isinstance(alignment, int)
        or not SMALLEST_ALIGNMENT <= alignment <= LARGEST_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        cursor.fail(
            "general.alignment",
            f"expected a power of two from {SMALLEST_ALIGNMENT} to {LARGEST_ALIGNMENT}, found {alignment}",
        )
    return Shard(mapped, metadata, read_tensors(cursor, tensor_count, alignment, data))


def _check_version(file: str, version: int) -> None:
    if version in (2, 3):
        return
    if version == 1:
        problem = "GGUF version 1 (2023), whose tables have another layout"
    elif version & 0xFFFF == 0 and version != 0:
        problem = "a big-endian GGUF file"
    else:
        problem = f"GGUF version {version}"
    raise UnsupportedFeature(f"{file}: {problem}; nybble reads little-endian versions 2 and 3, convert the model again")
