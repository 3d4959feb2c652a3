"""Models among the files of a repository that are folders: ONNX graphs, and transformers' safetensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SAFETENSORS = "safetensors"
"""The name of a repository's safetensors, which lie at its root, as ``config.json`` does."""

ROOT_ONNX = "onnx"
"""The name of an ONNX model at the root of a repository."""

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_CONFIGURATION, _GENAI, _TOKENIZER = "config.json", "genai_config.json", "tokenizer.json"
_COMPANIONS = (".json", ".jinja")


@dataclass(frozen=True, slots=True)
class FolderChoice:
    """One such model: its ``files``, those that make it a model last, and the ``folder`` that holds them."""

    name: str
    folder: str
    files: tuple[str, ...]
    is_onnx: bool

    def path_in(self, snapshot: Path) -> Path:
        """What to open."""
        return snapshot / self.folder


def list_folders(files: Iterable[str]) -> list[FolderChoice]:
    """The folders with a decoder in ONNX, sorted by name, then the safetensors at the root, if they are there.

    An ONNX folder has ``genai_config.json``, or one graph and a tokeniser; its weights lie beside the graph.
    """
    by_folder: dict[str, list[str]] = {}
    for file in sorted(set(files)):
        by_folder.setdefault(str(PurePosixPath(file).parent), []).append(file)
    found = [_onnx(folder, own) for folder, own in sorted(by_folder.items())]
    return [choice for choice in (*found, _safetensors(by_folder.get(".", []))) if choice is not None]


def choose_folder(choices: Sequence[FolderChoice], selector: str | None) -> list[FolderChoice]:
    """What ``selector`` means, a folder or the last part of its name; without one, the ONNX models for CPUs come first.

    One choice if it is plain which; several, or none, if not.
    """
    if selector is not None:
        exact = [choice for choice in choices if choice.name == selector.strip("/")]
        return exact or [choice for choice in choices if PurePosixPath(choice.name).name == selector]
    graphs = [choice for choice in choices if choice.is_onnx]
    for_cpus = [choice for choice in graphs if "cpu" in choice.name.lower()]
    return for_cpus or graphs or list(choices)


def _onnx(folder: str, files: Sequence[str]) -> FolderChoice | None:
    names = {PurePosixPath(file).name for file in files}
    graphs = [file for file in files if file.endswith(".onnx")]
    if not graphs or not (_GENAI in names or (len(graphs) == 1 and _TOKENIZER in names)):
        return None
    # Weights are called model.onnx.data, model.onnx_data_1, or model.data.
    weights = [file for file in files if file not in graphs and (".onnx" in file or file.endswith(".data"))]
    small = [file for file in files if file.endswith(_COMPANIONS) and file not in weights and _INDEX not in file]
    return FolderChoice(ROOT_ONNX if folder == "." else folder, folder, (*weights, *small, *graphs), is_onnx=True)


def _safetensors(files: Sequence[str]) -> FolderChoice | None:
    if _CONFIGURATION not in files:
        return None
    shards = [file for file in files if file.startswith("model-") and file.endswith(".safetensors")]
    weights = [*shards, _INDEX] if _INDEX in files else [_SINGLE]
    if not set(weights) <= set(files):
        return None
    small = [file for file in files if file.endswith(_COMPANIONS) and file != _INDEX]
    return FolderChoice(SAFETENSORS, ".", (*small, *weights), is_onnx=False)
