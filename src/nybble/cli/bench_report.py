"""What ``nybble bench`` prints, and the bar it draws meanwhile."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .output import note
from .report import counted
from .table import columns, print_table

if TYPE_CHECKING:
    from ..bench.benchmark import Progress
    from ..bench.row import Row

_REDRAW_SECONDS = 0.5
"""A bar that is drawn more often would itself disturb what is measured."""


@contextlib.contextmanager
def sample_progress() -> Iterator[Progress]:
    """A bar of the samples taken on standard error; nothing where there is no terminal to draw it on."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    with bars:
        task = bars.add_task("measuring", total=None)
        drawn = 0.0

        def draw(done: int, total: int, what: str) -> None:
            nonlocal drawn
            bars.update(task, completed=done, total=total, description=what)
            if time.monotonic() - drawn >= _REDRAW_SECONDS:
                bars.refresh()
                drawn = time.monotonic()

        yield draw


def print_rows(rows: Sequence[Row], output_format: str) -> None:
    """Print the rows on standard output."""
    from ..bench import formats

    if output_format in ("table", "md"):
        print_cells(*formats.table(rows), output_format)
        if output_format == "table" and rows:
            print()
            print(_origin(rows))
    else:
        print({"csv": formats.to_csv, "json": formats.to_json, "jsonl": formats.to_json_lines}[output_format](rows))


def _origin(rows: Sequence[Row]) -> str:
    """What our rows have in common, told once."""
    from ..bench.job import OURS

    row = rows[0]
    parts = [row.model]
    if row.bits_per_weight is not None:
        kind = f"{row.model_type}, " if row.engine == OURS else ""
        parts.append(f"{kind}{row.bits_per_weight:.2f} bits per weight packed")
    revision = f" ({row.revision})" if row.revision else ""
    isas = "/".join(dict.fromkeys(other.isa for other in rows if other.isa is not None))
    parts.append(f"nybble {row.version}{revision}, {isas}, {row.cpu}")
    processes = "1 process" if row.processes == 1 else f"{row.processes} processes"
    parts.append(f"medians of {counted(len(row.samples), 'sample')} from {processes}")
    return "; ".join(parts)


def print_rivals(rows: Sequence[Row], output_format: str) -> None:
    """Print how many times as fast as each other engine ours is."""
    from ..bench.compare import rivals
    from ..bench.formats import rate

    cells = [
        [
            *_place(rival.ours),
            rate(rival.ours.tokens_per_second),
            rival.theirs.engine,
            rate(rival.theirs.tokens_per_second),
            f"{rival.ratio:.2f}",
        ]
        for rival in rivals(rows)
    ]
    _print_more([*_PLACE, "NYBBLE>", "ENGINE", "TOK/S>", "RATIO>"], cells, output_format)


def print_comparison(old: Sequence[Row], new: Sequence[Row], output_format: str) -> None:
    """Print what became faster or slower than in an earlier run."""
    from ..bench.compare import compare
    from ..bench.formats import rate

    comparisons = compare(old, new)
    cells = [
        [
            found.new.engine,
            *_place(found.new),
            rate(found.old.tokens_per_second),
            rate(found.new.tokens_per_second),
            f"{100 * found.change:+.1f}%",
            found.verdict,
        ]
        for found in comparisons
    ]
    _print_more(["ENGINE", *_PLACE, "OLD>", "NEW>", "CHANGE>", "VERDICT"], cells, output_format)
    for name, values in (
        ("model", ({row.model for row in old}, {row.model for row in new})),
        ("processor", ({row.cpu for row in old}, {row.cpu for row in new})),
    ):
        if values[0] != values[1]:
            note(f"the {name} was {', '.join(sorted(values[0]))} then and is {', '.join(sorted(values[1]))} now")
    if len(comparisons) < len(new):
        note(f"{len(new) - len(comparisons)} of {len(new)} rows have nothing to be compared with")


def print_cells(titles: Sequence[str], cells: Sequence[Sequence[str]], output_format: str) -> None:
    """Print a table for people, in plain text or Markdown."""
    from ..bench.formats import to_markdown

    if output_format == "md":
        print(to_markdown(titles, cells))
    else:
        print_table(columns(*titles), cells)


_PLACE = ("TEST", "THREADS>", "DEPTH>", "BATCH>")


def _place(row: Row) -> list[str]:
    return [row.test, str(row.threads), str(row.depth), str(row.batch)]


def _print_more(titles: Sequence[str], cells: Sequence[Sequence[str]], output_format: str) -> None:
    """A second table; on standard error where standard output is for programs."""
    if not cells:
        return
    if output_format in ("table", "md"):
        print()
        print_cells(titles, cells, output_format)
        return
    for row in cells:
        note(", ".join(f"{title.removesuffix('>').lower()} {cell}" for title, cell in zip(titles, row, strict=True)))
