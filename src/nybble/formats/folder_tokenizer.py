"""The tokeniser, chat template and recommended sampling of a model's folder, said in the keys that GGUF files use.

Files as on the hub: ``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja``, ``generation_config.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ModelFileError, UnsupportedFeature
from .checkpoint import MetadataValue
from .companions import Companions
from .tokenizer_json import read_tokenizer_json

GENERATION_CONFIGURATION = "generation_config.json"
SAMPLING = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
_TOKENIZER, _SETTINGS, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
TOKENIZER_FILES = (_TOKENIZER, _SETTINGS, _TEMPLATE)


def read_tokenizer(
    beside: Companions, described: Mapping[str, Any], vocabulary: int | None
) -> dict[str, MetadataValue]:
    """The keys of the tokeniser in a folder, padded to ``vocabulary`` tokens; none where there is no tokeniser.

    ``described`` is the model's configuration. Raises :class:`ModelFileError` for files that contradict each other,
    :class:`UnsupportedFeature` for a tokeniser nybble does not have.
    """
    file = beside.find(_TOKENIZER)
    if file is None:
        return {}
    metadata = read_tokenizer_json(file, vocabulary)
    generation, settings = beside.json(GENERATION_CONFIGURATION), beside.json(_SETTINGS)
    metadata |= _special_tokens(metadata, [described, generation], settings, file)
    return metadata | _chat_template(beside, settings)


def recommended_sampling(search: Mapping[str, Any]) -> dict[str, MetadataValue]:
    """What the author recommends; temperature and filters count only where sampling is on."""
    found: dict[str, MetadataValue] = {}
    names = dict(SAMPLING) if search.get("do_sample") is True else {}
    names["repetition_penalty"] = "penalty_repeat"
    for name, key in names.items():
        value = search.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[f"general.sampling.{key}"] = value if name == "top_k" else float(value)
    return found


def _special_tokens(
    metadata: Mapping[str, MetadataValue],
    sources: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
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


def _chat_template(beside: Companions, settings: Mapping[str, Any]) -> dict[str, MetadataValue]:
    own = beside.text(_TEMPLATE)
    if own is not None:
        return {"tokenizer.chat_template": own}
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template is None:
        return {}
    if not isinstance(template, str):
        raise UnsupportedFeature(
            f"{beside.folder / _SETTINGS}: chat_template is a {type(template).__name__}; expected text"
        )
    return {"tokenizer.chat_template": template}
