"""``nybble cache``: the packed weights that are kept for the next start."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidParameter, ModelNotFound
from . import options
from .output import megabytes, note, print_json
from .report import counted
from .table import columns, print_table

EXAMPLES = ("nybble cache ls", "nybble cache ls --json", "nybble cache rm --all")
LIST_EXAMPLES = ("nybble cache ls", "nybble cache ls --json")
REMOVE_EXAMPLES = ("nybble cache rm model.gguf", "nybble cache rm --all")

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="List or remove the packed weights that make starts quick."
)


def list_entries(as_json: options.Json = False) -> None:
    """List what is stored, the most recently used first."""
    from ..packed.store import PackedStore

    store = PackedStore()
    found = store.models()
    if as_json:
        print_json({"directory": str(store.directory), "entries": [model._asdict() for model in found]})
        return
    print_table(
        columns("MODEL", "FOR", "SIZE>", "USED>", "NAME"),
        [
            (Path(model.model).name, model.options, megabytes(model.bytes), _ago(model.used), model.name)
            for model in found
        ],
    )
    print()
    print(f"{counted(len(found), 'model')}, {megabytes(sum(model.bytes for model in found))} in {store.directory}")


def remove_entries(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A model's file or a NAME that `nybble cache ls` shows.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all there is.")] = False,
) -> None:
    """Remove what is stored of a model, or of all. Nothing is lost: the next start packs the model again."""
    from ..packed.store import PackedStore

    if (name is None) != everything:
        raise InvalidParameter("give either the NAME of what to remove or --all")
    gone = PackedStore().remove(name)
    if name is not None and not gone:
        raise ModelNotFound(f"the packed cache has nothing called {name}; see `nybble cache ls`")
    note(f"{counted(len(gone), 'model')} removed, {megabytes(sum(model.bytes for model in gone))}")


def _ago(moment: float) -> str:
    minutes = max(0, int(time.time() - moment)) // 60
    if minutes < 60:
        return counted(minutes, "minute") + " ago"
    return counted(minutes // 60, "hour") + " ago" if minutes < 60 * 48 else counted(minutes // 1440, "day") + " ago"
