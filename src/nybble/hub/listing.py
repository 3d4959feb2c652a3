"""The models that are known or on this machine, for ``nybble models``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelNotFound, UnsupportedFeature
from .cache import ModelCache
from .catalogue import Catalogue, load_catalogue
from .huggingface import parse_reference
from .huggingface_cache import list_cached


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model. ``name`` is what :func:`nybble.hub.resolve.resolve` takes, ``size`` is in bytes.

    ``path`` is its file where ``present``, else where it would be stored.
    """

    name: str
    title: str
    source: str
    size: int
    quantisation: str | None
    license: str | None
    default: bool
    present: bool
    path: Path


def known_models(catalogue: Catalogue | None = None) -> list[ModelStatus]:
    """The models of the catalogue, then the GGUF and ONNX models in the Hugging Face cache. Asks no network."""
    cache = ModelCache()
    entries = (catalogue or load_catalogue()).entries.values()
    named = [
        ModelStatus(
            name=entry.name,
            title=entry.title,
            source=str(entry.source),
            size=entry.size,
            quantisation=entry.quantisation,
            license=entry.license,
            default=entry.default,
            present=cache.find(entry) is not None,
            path=cache.location(entry),
        )
        for entry in entries
    ]
    found = [
        ModelStatus(
            name=model.name,
            title=model.path.name.removesuffix(".gguf"),
            source="Hugging Face cache",
            size=model.size,
            quantisation=model.quantisation,
            license=None,
            default=False,
            present=True,
            path=model.path,
        )
        for model in list_cached()
    ]
    return named + found


def remove(name: str, catalogue: Catalogue | None = None) -> bool:
    """Delete a catalogue model's files from our cache; False if there were none.

    Raises ModelNotFound for a name that is not in the catalogue, and UnsupportedFeature for a model in the Hugging Face
    cache, which belongs to other programs as well.
    """
    known = (catalogue or load_catalogue()).entries
    if name in known:
        return ModelCache().remove(name)
    if reference := parse_reference(name):
        raise UnsupportedFeature(
            f"{name} is in the Hugging Face cache, which other programs share; "
            f"remove it with `hf cache rm model/{reference.repository}`"
        )
    raise ModelNotFound(f"no model {name!r} in the catalogue, which has {', '.join(sorted(known))}")
