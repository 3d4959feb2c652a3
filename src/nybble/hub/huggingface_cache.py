"""What the Hugging Face cache holds, read without the network.

The cache belongs to huggingface_hub and is shared by every program that uses the hub. Its layout, with
``models--org--repo/snapshots/commit/file`` linking to a blob, is documented in the guide "Understand caching".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelNotFound
from .choice import Choice, choose, list_choices
from .folders import FolderChoice, list_folders


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A complete model in the cache, a GGUF file or a folder with an ONNX decoder.

    ``name`` is ``org/repo:file`` or ``org/repo:folder``, ``path`` what is opened, ``size`` the bytes of all its files.
    """

    name: str
    path: Path
    size: int
    quantisation: str | None


def repository_directory(repository: str) -> Path:
    """Where the cache keeps a repository."""
    return _directory() / f"models--{repository.replace('/', '--')}"


def find_cached(repository: str, selector: str | None) -> Path | None:
    """What to open of the model that the selector means in the newest snapshot that has it; None if none has."""
    for snapshot in _snapshots(repository_directory(repository)):
        try:
            return choose(_files_below(snapshot), selector, repository).path_in(snapshot)
        except ModelNotFound:
            continue
    return None


def list_cached() -> list[CachedModel]:
    """All complete models, by name; where several snapshots have one, that of the newest."""
    models: dict[str, CachedModel] = {}
    for folder in _directory().glob("models--*--*"):
        repository = folder.name.removeprefix("models--").replace("--", "/", 1)
        for snapshot in _snapshots(folder):
            files = _files_below(snapshot)
            whole = [choice for choice in list_choices(files) if not choice.missing and not choice.is_companion]
            # Safetensors are those of any program, and mostly of other models than decoders.
            graphs = [choice for choice in list_folders(files) if choice.is_onnx]
            choices: list[Choice | FolderChoice] = [*whole, *graphs]
            for choice in choices:
                name = f"{repository}:{choice.name}"
                if name not in models:
                    size = sum((snapshot / file).stat().st_size for file in choice.files)
                    quantisation = choice.quantisation if isinstance(choice, Choice) else None
                    models[name] = CachedModel(name, choice.path_in(snapshot), size, quantisation)
    return [models[name] for name in sorted(models)]


def _directory() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _snapshots(repository: Path) -> list[Path]:
    """Newest first."""
    try:
        return sorted((repository / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []


def _files_below(snapshot: Path) -> list[str]:
    """Files that are there: a link whose blob was deleted is not."""
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
