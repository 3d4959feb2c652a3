"""``nybble models``: the models that are known and those that are here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ModelNotFound
from . import options
from .output import megabytes, note, print_json, work_progress
from .table import columns, print_table

EXAMPLES = ("nybble models", "nybble models --json", "nybble models fetch smollm2-135m")
FETCH_EXAMPLES = ("nybble models fetch smollm2-135m", "nybble models fetch org/repo:Q4_K_M")
REMOVE_EXAMPLES = ("nybble models remove smollm2-135m",)

app = typer.Typer(rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that `nybble models` shows, or org/repo of a hub.")]


@app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: options.Json = False) -> None:
    """List the models that are known by name or on this machine; fetch or remove one."""
    if context.invoked_subcommand is None:
        _list(as_json)


def fetch(name: Name) -> None:
    """Fetch a model, and print the path of its file."""
    from ..hub.resolve import resolve

    with work_progress() as progress:
        path = resolve(name, progress=progress)
    print(path)


def remove(name: Name) -> None:
    """Delete a model's file from nybble's cache."""
    from ..hub import listing

    if not listing.remove(name):
        raise ModelNotFound(f"{name} is not on this machine, so there is nothing to remove")
    note(f"{name} is removed")


def _list(as_json: bool) -> None:
    from dataclasses import asdict

    from ..hub.listing import known_models

    known = known_models()
    if as_json:
        print_json([{**asdict(model), "path": str(model.path)} for model in known])
        return
    print_table(
        columns("NAME", "TITLE", "QUANT", "SIZE>", "SOURCE", "HERE"),
        [
            (
                model.name,
                model.title,
                model.quantisation or "?",
                megabytes(model.size),
                model.source,
                "yes" if model.present else "no",
            )
            for model in known
        ],
    )
    print()
    print(f"default: {', '.join(model.name for model in known if model.default)}")
    if here := [(model.name, _short(model.path)) for model in known if model.present]:
        print()
        print_table(columns("NAME", "FILE"), here)


def _short(path: Path) -> str:
    """``path`` with the home directory written as ~."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # elsewhere; no home
        return str(path)
