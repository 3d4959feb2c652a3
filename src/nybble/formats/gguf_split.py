"""Models split over several GGUF files, named ``name-00001-of-00003.gguf``.

The names of the other shards come from the name that was opened and are looked for in the same folder; the metadata
inside the files (``split.no``, ``split.count``, ``split.tensors.count``) is only ever compared with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelFileError
from ..quant.tensor import Tensor
from .checkpoint import MetadataValue
from .gguf_shard import Shard

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)

# Keys that describe a file rather than the model, so that shards may differ in them.
_OF_ONE_FILE = frozenset({"split.no", "split.count", "split.tensors.count", "general.alignment"})


@dataclass(frozen=True, slots=True)
class ShardNames:
    """The files of a split model in order, and which of them (from 0) was opened."""

    paths: tuple[Path, ...]
    opened: int


def shard_names(shard: Shard) -> ShardNames | None:
    """The names of all shards of the model ``shard`` belongs to; None for a model in one file.

    Raises :class:`ModelFileError` when the file says it is a shard and its name says otherwise, or a shard is missing.
    """
    path = shard.mapped.path
    count = shard.metadata.get("split.count", 1)
    if count in (0, 1):
        return None
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ModelFileError(
            path,
            "split.count",
            f"this is one of {count} shards, but its name does not end in -00001-of-{count:0>5}.gguf or alike, so the "
            "others cannot be found; give the files their names back",
        )
    number, named_count = int(match["number"]), int(match["count"])
    if count != named_count:
        raise ModelFileError(path, "split.count", f"the file says {count} shards, its name says {named_count}")
    if not 1 <= number <= named_count:
        raise ModelFileError(path, "", f"the name says shard {number} of {named_count}")
    paths = tuple(
        path.with_name(f"{match['stem']}-{place:05d}-of-{named_count:05d}.gguf") for place in range(1, named_count + 1)
    )
    for place, sibling in enumerate(paths, start=1):
        if not sibling.exists():
            raise ModelFileError(
                sibling, "", f"shard {place} of {named_count} is missing; all shards must lie in one folder"
            )
    return ShardNames(paths, number - 1)


def check_agreement(shards: tuple[Shard, ...]) -> None:
    """Raise :class:`ModelFileError` unless the shards, in order, are parts of one model."""
    first = shards[0]
    for place, shard in enumerate(shards):
        _check_equal(shard, "split.no", place)
        _check_equal(shard, "split.count", len(shards))
        for key, value in shard.metadata.items():
            if key not in _OF_ONE_FILE and first.metadata.get(key) != value:
                raise ModelFileError(
                    shard.mapped.path, key, f"differs from the same key of the first shard, {first.mapped.path.name}"
                )
    total = sum(len(shard.tensors) for shard in shards)
    for shard in shards:
        if "split.tensors.count" in shard.metadata:
            _check_equal(shard, "split.tensors.count", total)


def all_tensors(shards: tuple[Shard, ...]) -> Mapping[str, Tensor]:
    """The tensors of all shards in order. Raises :class:`ModelFileError` when two shards hold the same name."""
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise ModelFileError(shard.mapped.path, name, f"this tensor is also in {tensors[name].file}")
            tensors[name] = tensor
    return tensors


def _check_equal(shard: Shard, key: str, expected: MetadataValue) -> None:
    found = shard.metadata.get(key)
    if found != expected:
        raise ModelFileError(
            shard.mapped.path, key, f"expected {expected}, found {'nothing' if found is None else found}"
        )
