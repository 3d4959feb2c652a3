"""Who is measured beside ours: the engines asked for, where they live, and which of them are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import InvalidParameter
from .benchmark import Contender
from .peers import PEERS, Peer


def parse_peers(text: str) -> tuple[str, ...]:
    """``llama-cpp,mnn`` as names of :data:`PEERS`; raises :class:`InvalidParameter` naming those there are."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in names:
        if name not in PEERS:
            raise InvalidParameter(f"no engine {name!r} to compare with; there are {', '.join(PEERS)}")
    return names


def parse_places(texts: Sequence[str], option: str, wanted: Sequence[str]) -> dict[str, str]:
    """``NAME=PATH`` for some of the engines ``wanted``; raises :class:`InvalidParameter` for any other text."""
    places = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or not path:
            raise InvalidParameter(f"{option} is {text!r}; expected NAME=PATH, as in llama-cpp=/path")
        if name not in wanted:
            raise InvalidParameter(f"{option} names {name!r}, which is not one of --against")
        places[name] = path
    return places


def find_contenders(
    names: Sequence[str], pythons: Mapping[str, str], models: Mapping[str, str], gguf: Path | None
) -> tuple[list[Contender], list[str]]:
    """The engines of ``names`` that can be measured, and for each of the others a line on what is missing.

    ``pythons`` and ``models`` are by name; ``gguf`` is the file that engines without a model of their own read.
    Raises :class:`InvalidParameter` for a model that is not there.
    """
    found, missing = [], []
    for name in names:
        peer = PEERS[name]
        python = pythons.get(name)
        if name in models:
            model = Path(models[name])
            if not model.exists():
                raise InvalidParameter(f"--peer-model {name}={model}: there is no such file")
        elif peer.own_model is not None or gguf is None:
            missing.append(f"{name} needs a model of its own: --peer-model {name}={_wanted(peer)}")
            continue
        else:
            model = gguf
        if not _has_library(python or sys.executable, peer.library):
            where = python or "this Python"
            missing.append(
                f"{name} is not installed in {where}: {peer.install}, "
                f"or name a Python that has it: --peer-python {name}=PATH"
            )
            continue
        found.append(Contender(name, str(model.absolute()), _name(model), python))
    return found, missing


def _name(model: Path) -> str:
    """What rows call a model: its file, or the folder that holds its config.json."""
    if model.name == "config.json":
        return model.absolute().parent.name
    return model.stem if model.is_file() else model.name


def _wanted(peer: Peer) -> str:
    return f"PATH of {peer.own_model or 'a GGUF file'}"


def _has_library(python: str, library: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({library!r}) is None)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [python, "-c", code], env={**environment, "PYTHONSAFEPATH": "1"}, capture_output=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
