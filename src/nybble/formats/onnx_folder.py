"""A folder with an ONNX model and what goes with it: ``genai_config.json``, ``tokenizer.json``, a chat template.

Folders of ONNX Runtime GenAI (https://onnxruntime.ai/docs/genai/reference/config.html) say which graph is the decoder;
others must hold one graph only, and may have ``config.json`` and ``generation_config.json`` as on the hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelFileError
from .checkpoint import Checkpoint, MetadataValue
from .companions import CONFIGURATION, Companions
from .folder_tokenizer import GENERATION_CONFIGURATION, read_tokenizer, recommended_sampling
from .mapped_file import MappedFile
from .onnx import read_onnx

GENAI_CONFIGURATION = "genai_config.json"


def open_onnx_folder(folder: Path) -> Checkpoint:
    """Open the decoder in ``folder``. Raises :class:`ModelFileError` as :func:`decoder_file`."""
    return open_onnx_checkpoint(MappedFile(decoder_file(folder)))


def has_decoder(folder: Path) -> bool:
    """Whether ``folder`` holds an ONNX graph, or says that it does."""
    return (folder / GENAI_CONFIGURATION).exists() or any(folder.glob("*.onnx"))


def decoder_file(folder: Path) -> Path:
    """The graph of the decoder in ``folder``.

    Raises :class:`ModelFileError` when there is none, or several and no ``genai_config.json`` to choose between them.
    """
    decoder = _object(_object(Companions(folder).json(GENAI_CONFIGURATION).get("model")).get("decoder"))
    if decoder:
        name = decoder.get("filename")
        if not isinstance(name, str) or not name or Path(name).name != name or not name.isprintable():
            raise ModelFileError(
                folder / GENAI_CONFIGURATION, "model.decoder.filename", f"is {name!r}; expected a file of this folder"
            )
        return folder / name
    graphs = sorted(path for path in folder.glob("*.onnx"))
    if len(graphs) != 1:
        found = ", ".join(path.name for path in graphs) or "none"
        raise ModelFileError(
            folder,
            "",
            f"is a folder without {GENAI_CONFIGURATION} and without a single .onnx file (found: {found}); "
            "give the model file inside it",
        )
    return graphs[0]


def model_type(folder: Path) -> str | None:
    """What the configurations in ``folder`` call the architecture."""
    beside = Companions(folder)
    genai = _object(beside.json(GENAI_CONFIGURATION).get("model")).get("type")
    found = genai if isinstance(genai, str) else beside.json(CONFIGURATION).get("model_type")
    return found if isinstance(found, str) else None


def open_onnx_checkpoint(mapped: MappedFile) -> Checkpoint:
    """The ONNX model that is ``mapped``, with what lies beside it, said in the keys of GGUF metadata."""
    path = mapped.path
    beside = Companions(path.parent)
    model = read_onnx(mapped)
    metadata: dict[str, MetadataValue] = {"general.architecture": "onnx"}
    genai = beside.json(GENAI_CONFIGURATION)
    described = _object(genai.get("model")) or beside.json(CONFIGURATION)
    metadata |= _context(described)
    size = described.get("vocab_size")
    tokenizer = read_tokenizer(beside, described, size if type(size) is int else None)
    if tokenizer:
        search = _object(genai.get("search")) or beside.json(GENERATION_CONFIGURATION)
        metadata |= tokenizer | recommended_sampling(search)
    files = (*model.files, *beside.identities)
    return Checkpoint(path, metadata, {}, model.file_bytes, model.release, files, model)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _context(described: Mapping[str, object]) -> dict[str, MetadataValue]:
    for key in ("context_length", "max_position_embeddings"):
        value = described.get(key)
        if type(value) is int and value >= 1:
            return {"onnx.context_length": value}
    return {}
