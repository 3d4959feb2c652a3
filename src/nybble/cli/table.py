"""Tables: aligned plain text in a pipe, fitted to the window on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from .output import one_line

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title, and whether it is aligned to the right, as numbers are."""

    title: str
    right: bool = False


def columns(*titles: str) -> list[Column]:
    """Columns by title; one that ends in ``>`` is aligned to the right."""
    return [Column(title.removesuffix(">"), title.endswith(">")) for title in titles]


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print ``rows``, one text for each column."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_fitted(columns, cells)
    else:
        for line in plain_lines(columns, cells):
            print(line)


def plain_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """The table's lines, titles first, without blanks at their ends."""
    table = [[column.title for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    return [
        _GAP.join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ).rstrip()
        for row in table
    ]


def _print_fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
