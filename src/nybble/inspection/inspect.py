"""A model of any format, inspected."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelFileError
from ..formats.gguf import read_gguf
from ..formats.gguf_shard import MAGIC
from ..formats.json_file import read_json
from ..formats.mapped_file import MappedFile
from ..formats.onnx import read_onnx
from ..formats.onnx_folder import decoder_file, model_type
from ..formats.recognise import describe_content, looks_like_onnx, looks_like_safetensors
from ..formats.safetensors import SafeTensors, read_safetensors
from .gguf import inspect_gguf
from .inspection import Inspection
from .onnx import inspect_onnx
from .safetensors import inspect_safetensors

SAFETENSORS_INDEX = "model.safetensors.index.json"
SAFETENSORS_FILE = "model.safetensors"


def inspect(path: Path) -> Inspection:
    """What the GGUF, ONNX or safetensors model at ``path``, a file or its folder, holds, and what is odd about it.

    Raises :class:`~nybble.errors.NybbleError` for what is no such model, or a damaged one.
    """
    if path.is_dir() and (path / SAFETENSORS_INDEX).exists():
        return inspect_safetensors(path, _shards(path))
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
    """The file of the model at ``path``, itself or the one in its folder."""
    if not path.is_dir():
        return path
    single = path / SAFETENSORS_FILE
    return single if single.exists() else decoder_file(path)


def _shards(folder: Path) -> list[SafeTensors]:
    """The files that the index in ``folder`` names."""
    index = folder / SAFETENSORS_INDEX
    places = read_json(index).get("weight_map")
    names = sorted(set(places.values())) if isinstance(places, dict) and places else []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelFileError(index, "weight_map", f"names {name!r}; expected files of this folder")
    if not names:
        raise ModelFileError(index, "weight_map", "names no file")
    return [read_safetensors(MappedFile(folder / name)) for name in names]
