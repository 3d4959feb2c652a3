"""The commands and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from . import bench, cache, chat, convert, explain, inspect, models, patch, probe, run

EXAMPLES = ('nybble run "What is the capital of France?"', "nybble chat", "nybble models")


def epilog(examples: Sequence[str]) -> str:
    """The end of a help page: examples, one a line (\\b keeps them so)."""
    return "\n".join(("\b", "Examples:", *(f"  {example}" for example in examples)))


app = typer.Typer(
    help="Run 4-bit and 8-bit language models on small CPUs.",
    epilog=epilog(EXAMPLES),
    no_args_is_help=True,
    add_completion=False,
    # Help pages without boxes come up in half the time.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        print(f"nybble {__version__}")
        raise typer.Exit


@app.callback()
def nybble(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options in front of the command."""


app.command(epilog=epilog(run.EXAMPLES))(run.run)
app.command(epilog=epilog(chat.EXAMPLES))(chat.chat)
models.app.command(epilog=epilog(models.FETCH_EXAMPLES))(models.fetch)
models.app.command(epilog=epilog(models.REMOVE_EXAMPLES))(models.remove)
app.add_typer(models.app, name="models", epilog=epilog(models.EXAMPLES))
cache.app.command("ls", epilog=epilog(cache.LIST_EXAMPLES))(cache.list_entries)
cache.app.command("rm", epilog=epilog(cache.REMOVE_EXAMPLES))(cache.remove_entries)
app.add_typer(cache.app, name="cache", epilog=epilog(cache.EXAMPLES))
app.command(epilog=epilog(explain.EXAMPLES))(explain.explain)
app.command(epilog=epilog(inspect.EXAMPLES))(inspect.inspect)
app.command(epilog=epilog(patch.EXAMPLES))(patch.patch)
app.command(epilog=epilog(convert.EXAMPLES))(convert.convert)
app.command(epilog=epilog(probe.EXAMPLES))(probe.probe)
app.command(epilog=epilog(bench.EXAMPLES))(bench.bench)
