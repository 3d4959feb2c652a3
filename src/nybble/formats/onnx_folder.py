"""A folder with an ONNX model and what goes with it: ``genai_config.json``, ``tokenizer.json``, a chat template.

Folders of ONNX Runtime GenAI (https://onnxruntime.ai/docs/genai/reference/config.html) say which graph is the decoder;
others must hold one graph only, and may have ``config.json`` and ``generation_config.json`` as on the hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelFileError, UnsupportedFeature
from .checkpoint import Checkpoint, MetadataValue
from .json_file import MAXIMUM_CONFIGURATION_BYTES, read_json, read_text
from .mapped_file import MappedFile
from .onnx import read_onnx
from .tokenizer_json import read_tokenizer_json

GENAI_CONFIGURATION = "genai_config.json"
SAMPLING = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def open_onnx_folder(folder: Path) -> Checkpoint:
    """Open the decoder in ``folder``. Raises :class:`ModelFileError` as :func:`decoder_file`."""
    return open_onnx_checkpoint(MappedFile(decoder_file(folder)))


def decoder_file(folder: Path) -> Path:
    """The graph of the decoder in ``folder``.

    Raises :class:`ModelFileError` when there is none, or several and no ``genai_config.json`` to choose between them.
    """
    configuration = _optional(folder / GENAI_CONFIGURATION)
    decoder = _decoder(configuration)
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
    genai = _object(_optional(folder / GENAI_CONFIGURATION).get("model")).get("type")
    found = genai if isinstance(genai, str) else _optional(folder / "config.json").get("model_type")
    return found if isinstance(found, str) else None


def open_onnx_checkpoint(mapped: MappedFile) -> Checkpoint:
    """The ONNX model that is ``mapped``, with what lies beside it, said in the keys of GGUF metadata."""
    path = mapped.path
    folder = path.parent
    model = read_onnx(mapped)
    metadata: dict[str, MetadataValue] = {"general.architecture": "onnx"}
    genai = _optional(folder / GENAI_CONFIGURATION)
    described = _object(genai.get("model")) or _optional(folder / "config.json")
    metadata |= _context(described)
    tokenizer = folder / "tokenizer.json"
    if tokenizer.exists():
        size = described.get("vocab_size")
        metadata |= read_tokenizer_json(tokenizer, size if type(size) is int else None)
        generation = _optional(folder / "generation_config.json")
        settings = _optional(folder / "tokenizer_config.json")
        metadata |= _special_tokens(metadata, [described, generation], settings, tokenizer)
        metadata |= _chat_template(folder, settings)
        metadata |= _sampling(_object(genai.get("search")) or generation)
    return Checkpoint(path, metadata, {}, model.file_bytes, model.release, graph=model)


def _optional(path: Path) -> dict[str, object]:
    return read_json(path) if path.exists() else {}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _decoder(configuration: Mapping[str, object]) -> dict[str, Any]:
    return _object(_object(configuration.get("model")).get("decoder"))


def _context(described: Mapping[str, object]) -> dict[str, MetadataValue]:
    for key in ("context_length", "max_position_embeddings"):
        value = described.get(key)
        if type(value) is int and value >= 1:
            return {"onnx.context_length": value}
    return {}


def _special_tokens(
    metadata: Mapping[str, MetadataValue],
    sources: list[dict[str, object]],
    settings: Mapping[str, object],
    file: Path,
) -> dict[str, MetadataValue]:
    """Ids of the tokens that begin and end: from the configurations, else by their spelling in the tokenizer's."""
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    found: dict[str, MetadataValue] = {}
    begins = [_ids(source.get("bos_token_id"), len(tokens)) for source in sources]
    ends = [_ids(source.get("eos_token_id"), len(tokens)) for source in sources]
    begin = next((ids for ids in begins if ids), _spelled(settings.get("bos_token"), tokens))
    end = next((ids for ids in ends if ids), _spelled(settings.get("eos_token"), tokens))
    if begin:
        found["tokenizer.ggml.bos_token_id"] = begin[0]
    for name, identifier in zip(("eos", "eot", "eom"), end, strict=False):
        found[f"tokenizer.ggml.{name}_token_id"] = identifier
    adds = settings.get("add_bos_token")
    if isinstance(adds, bool):
        found["tokenizer.ggml.add_bos_token"] = adds and bool(begin)
    elif not begin:
        found["tokenizer.ggml.add_bos_token"] = False
    if not end:
        raise ModelFileError(file, "eos_token_id", "no configuration beside it says which token ends an answer")
    return found


def _ids(value: object, count: int) -> list[int]:
    listed = value if isinstance(value, list) else [value]
    return [number for number in listed if type(number) is int and 0 <= number < count]


def _spelled(value: object, tokens: list[Any]) -> list[int]:
    text = value.get("content") if isinstance(value, dict) else value
    return [tokens.index(text)] if isinstance(text, str) and text in tokens else []


def _chat_template(folder: Path, settings: Mapping[str, object]) -> dict[str, MetadataValue]:
    own = folder / "chat_template.jinja"
    if own.exists():
        return {"tokenizer.chat_template": read_text(own, MAXIMUM_CONFIGURATION_BYTES)}
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template is None:
        return {}
    if not isinstance(template, str):
        raise UnsupportedFeature(
            f"{folder / 'tokenizer_config.json'}: chat_template is a {type(template).__name__}; expected text"
        )
    return {"tokenizer.chat_template": template}


def _sampling(search: Mapping[str, object]) -> dict[str, MetadataValue]:
    """What the author recommends; temperature and filters count only where sampling is on."""
    found: dict[str, MetadataValue] = {}
    names = dict(SAMPLING) if search.get("do_sample") is True else {}
    names["repetition_penalty"] = "penalty_repeat"
    for name, key in names.items():
        value = search.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[f"general.sampling.{key}"] = value if name == "top_k" else float(value)
    return found
