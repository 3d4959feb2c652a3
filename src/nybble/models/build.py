"""From an opened checkpoint to a graph. A module of this package with a ``build`` function is an architecture."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

from ..errors import UnsupportedFeature
from ..formats.checkpoint import Checkpoint
from ..graph.graph import Graph


def architectures() -> dict[str, Callable[[Checkpoint], Graph]]:
    """The architectures nybble knows, by the name GGUF files use. To add one, add its file; there is no list."""
    found: dict[str, Callable[[Checkpoint], Graph]] = {}
    for information in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f".{information.name}", __package__)
        if hasattr(module, "build"):
            found[information.name] = module.build
    return found


def build_graph(checkpoint: Checkpoint) -> Graph:
    """The graph of ``checkpoint``, not lowered.

    Raises :class:`~nybble.errors.UnsupportedFeature` for an architecture or feature nybble does not have, and
    :class:`~nybble.errors.ModelFileError` for a file that contradicts itself.
    """
    known = architectures()
    if checkpoint.architecture not in known:
        names = ", ".join(sorted(known))
        raise UnsupportedFeature(
            f"{checkpoint.path}: general.architecture is {checkpoint.architecture!r}; nybble runs {names}"
        )
    return known[checkpoint.architecture](checkpoint)
