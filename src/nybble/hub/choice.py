"""Which model of a repository is meant: by file name, by quantisation, by folder, or by our own order of preference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import ModelNotFound
from .folders import FolderChoice, choose_folder, list_folders

# Used when no quantisation is named: 4 bits before more, since a small CPU decodes as fast as it reads weights; among
# equals the more accurate first; then upwards in size.
PREFERENCE = (
    "Q4_K_M",
    "Q4_K_S",
    "Q4_0",
    "Q4_1",
    "Q5_K_M",
    "Q5_K_S",
    "Q5_0",
    "Q5_1",
    "Q6_K",
    "Q8_0",
    "BF16",
    "F16",
    "F32",
)
# Publishers put the quantisation last in the name: Model-Q4_K_M.gguf, model.q8_0.gguf, Model-UD-IQ2_XXS.gguf.
_QUANTISATION = re.compile(
    r"(?<![A-Za-z0-9])(?P<label>(?:UD-)?(?:I?Q\d+(?:_[A-Za-z0-9]+)*|TQ\d+(?:_\d+)*|MXFP4(?:_MOE)?|BF16|F16|F32))\Z",
    re.IGNORECASE,
)
_SHARD = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})\Z")
# Files that are no language model by themselves.
_COMPANION = re.compile(r"(?:\A|[-_.])(?:mmproj|imatrix)(?:[-_.]|\Z)", re.IGNORECASE)
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Choice:
    """One model of a repository: its files (several where it is split, in order) and its quantisation if named."""

    name: str
    files: tuple[str, ...]
    quantisation: str | None
    missing: int = 0

    @property
    def is_companion(self) -> bool:
        """True for vision projectors and importance matrices, which accompany a model."""
        return _COMPANION.search(PurePosixPath(self.name).stem) is not None

    def path_in(self, snapshot: Path) -> Path:
        """What to open: the first file."""
        return snapshot / self.files[0]


def list_choices(files: Iterable[str]) -> list[Choice]:
    """The GGUF models among the files of a repository, sorted by name; the shards of a split model count as one."""
    whole: list[Choice] = []
    split: dict[tuple[str, int], dict[int, str]] = {}
    for file in sorted(set(files)):
        if not file.lower().endswith(".gguf"):
            continue
        stem = file[: -len(".gguf")]
        shard = _SHARD.search(stem)
        if shard and 1 <= int(shard["number"]) <= int(shard["count"]):
            base = stem[: shard.start()]
            split.setdefault((base, int(shard["count"])), {})[int(shard["number"])] = file
        else:
            whole.append(Choice(file, (file,), _label(stem)))
    for (base, count), shards in split.items():
        ordered = tuple(shards[number] for number in sorted(shards))
        whole.append(Choice(ordered[0], ordered, _label(base), missing=count - len(ordered)))
    return sorted(whole, key=lambda choice: choice.name)


def choose(files: Iterable[str], selector: str | None, repository: str) -> Choice | FolderChoice:
    """The model that ``selector`` means: a file name, a quantisation such as Q4_K_M in any case, or a folder with an
    ONNX model; ``safetensors`` for the files transformers loads. None for any: GGUF before ONNX before safetensors.

    Raises ModelNotFound naming what there is to choose from, also where more than one fits or a shard is missing.
    """
    listed = list(files)
    choices, folders = list_choices(listed), list_folders(listed)
    fitting = choose_folder(folders, selector)
    if fitting and (selector is not None or not choices):
        return _only_folder(fitting, repository)
    if not choices and folders:
        raise ModelNotFound(
            f"{repository} has no model {selector}; there are {', '.join(folder.name for folder in folders[:_LISTED])}"
        )
    if not choices:
        raise ModelNotFound(
            f"{repository} holds no GGUF file, no folder with an ONNX decoder, and no safetensors with config.json"
        )
    chosen = _preferred(choices, repository) if selector is None else _selected(choices, selector, repository)
    if chosen.missing:
        raise ModelNotFound(f"{repository}: {chosen.name} is split and {chosen.missing} of its files are missing")
    return chosen


def _preferred(choices: Sequence[Choice], repository: str) -> Choice:
    models = [choice for choice in choices if not choice.is_companion]
    if len(models) == 1:
        return models[0]
    for label in PREFERENCE:
        fitting = [choice for choice in models if choice.quantisation == label]
        if fitting:
            return _only(fitting, label, repository)
    raise ModelNotFound(f"{repository} holds several models; name one: {repository}:{{{_names(models or choices)}}}")


def _selected(choices: Sequence[Choice], selector: str, repository: str) -> Choice:
    for choice in choices:
        if selector in choice.files:
            return choice
    named = [choice for choice in choices if any(PurePosixPath(file).name == selector for file in choice.files)]
    if named:
        return _only(named, selector, repository)
    label = selector.upper()
    models = [choice for choice in choices if not choice.is_companion]
    for spelling in (label, f"UD-{label}"):
        fitting = [choice for choice in models if choice.quantisation == spelling]
        if fitting:
            return _only(fitting, selector, repository)
    raise ModelNotFound(f"{repository} has no GGUF file or quantisation {selector}; there are {_names(choices)}")


def _only(fitting: Sequence[Choice], selector: str, repository: str) -> Choice:
    if len(fitting) > 1:
        raise ModelNotFound(
            f"{repository} has {len(fitting)} files for {selector}; name one: "
            + ", ".join(f"{repository}:{choice.name}" for choice in fitting[:_LISTED])
        )
    return fitting[0]


def _only_folder(fitting: Sequence[FolderChoice], repository: str) -> FolderChoice:
    if len(fitting) > 1:
        raise ModelNotFound(
            f"{repository} holds {len(fitting)} such models; name one: "
            + ", ".join(f"{repository}:{choice.name}" for choice in fitting[:_LISTED])
        )
    return fitting[0]


def _names(choices: Sequence[Choice]) -> str:
    """Quantisations where they tell the choices apart, else file names."""
    labels = [choice.quantisation for choice in choices if choice.quantisation is not None]
    unique = len(labels) == len(choices) == len(set(labels))
    names = [choice.quantisation or "" for choice in choices] if unique else [choice.name for choice in choices]
    more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return ", ".join(names[:_LISTED] + more)


def _label(stem: str) -> str | None:
    found = _QUANTISATION.search(stem)
    return found["label"].upper() if found else None
