"""Rows as text: for people (cells of a table, Markdown) and for programs (CSV, JSON, JSON lines)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..errors import InvalidParameter
from .cases import OPERATION_TEST
from .row import Row

FORMATS = ("table", "md", "csv", "json", "jsonl")


def check_format(name: str) -> None:
    """Raises :class:`InvalidParameter` unless ``name`` is one of :data:`FORMATS`."""
    if name not in FORMATS:
        raise InvalidParameter(f"--format is {name!r}; expected one of {', '.join(FORMATS)}")


def to_json(rows: Sequence[Row]) -> str:
    """A list of objects, the fields of :class:`Row` in each."""
    return json.dumps([asdict(row) for row in rows], indent=2)


def to_json_lines(rows: Sequence[Row]) -> str:
    """An object a line."""
    return "\n".join(json.dumps(asdict(row)) for row in rows)


def to_csv(rows: Sequence[Row]) -> str:
    """The fields of :class:`Row` as columns; lists are joined by semicolons, what is unknown is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Row)]
    writer.writerow(names)
    for row in rows:
        writer.writerow(_csv_cell(getattr(row, name)) for name in names)
    return text.getvalue().removesuffix("\n")


def to_markdown(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; titles that end in ``>`` are aligned to the right."""
    lines = ["| " + " | ".join(title.removesuffix(">") for title in titles) + " |"]
    lines.append("|" + "|".join("--:" if title.endswith(">") else "---" for title in titles) + "|")
    lines += ["| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in cells]
    return "\n".join(lines)


def read_rows(path: Path) -> list[Row]:
    """The rows that ``--save`` wrote. Raises OSError, :class:`InvalidParameter` if the file is not such a one."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, list):
            raise ValueError("it is no list of rows")
        return [_parse_row(entry) for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidParameter(f"{path}: expected the JSON that --save writes: {error}") from None


def _parse_row(entry: dict[str, Any]) -> Row:
    lists = {name: tuple(entry[name]) for name in ("samples", "busy", "process_medians")}
    row = Row(**{**entry, **lists})
    if not row.samples or len(row.samples) != len(row.busy):
        raise ValueError(f"{row.test} has {len(row.samples)} samples and {len(row.busy)} flags")
    return row


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Titles (``>`` behind those of numbers) and cells for people; columns that say nothing are left out."""
    if rows and all(row.test.startswith(OPERATION_TEST) for row in rows):
        return _operations_table(rows)
    known = any(row.share is not None for row in rows)
    columns: list[tuple[str, list[str], bool]] = [
        ("ENGINE", [row.engine for row in rows], len({row.engine for row in rows}) > 1),
        ("MODEL", [row.model for row in rows], len({row.model for row in rows}) > 1),
        ("TEST", [row.test for row in rows], True),
        ("THREADS>", [str(row.threads) for row in rows], True),
        ("DEPTH>", [str(row.depth) for row in rows], any(row.depth for row in rows)),
        ("BATCH>", [str(row.batch) for row in rows], any(row.batch > 1 for row in rows)),
        ("TOK/S>", [rate(row.tokens_per_second) for row in rows], True),
        (
            "MIN-MAX>",
            [f"{rate(row.minimum)}-{rate(row.maximum)}" for row in rows],
            any(len(row.samples) > 1 for row in rows),
        ),
        ("RATE>", [_work_rate(row) for row in rows], known),
        ("CEILING>", [rate(row.ceiling_tokens_per_second) for row in rows], known),
        ("OF>", [_machine_rate(row) for row in rows], known),
        ("SHARE>", [percent(row.share) for row in rows], known),
        ("WITH KV>", [percent(row.share_with_kv) for row in rows], any(row.depth for row in rows)),
        ("BUSY>", [f"{row.busy_samples}/{len(row.samples)}" for row in rows], any(row.busy_samples for row in rows)),
    ]
    shown = [(title, cells) for title, cells, has_something in columns if has_something]
    titles = [title for title, _ in shown]
    return titles, [list(row) for row in zip(*(cells for _, cells in shown), strict=True)]


def _operations_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Of ops on their own: the time of one, and what was multiplied and read in it."""
    titles = ["KERNEL", "M>", "THREADS>", "TIME>", "MIN-MAX>", "GOP/S>", "GB/S>", "OF>", "SHARE>", "BUSY>"]
    cells = []
    for row in rows:
        count = int(row.test.removeprefix(OPERATION_TEST))
        times = (1e6 * count / rows_per_second for rows_per_second in (row.tokens_per_second, row.maximum, row.minimum))
        median, shortest, longest = (rate(time) for time in times)
        cells.append(
            [
                row.engine,
                str(count),
                str(row.threads),
                f"{median} us",
                f"{shortest}-{longest}",
                f"{row.gigaoperations_per_second:.1f}",
                f"{row.gigabytes_per_second:.1f}",
                _machine_rate(row),
                percent(row.share),
                f"{row.busy_samples}/{len(row.samples)}",
            ]
        )
    return titles, cells


def rate(tokens_per_second: float | None) -> str:
    """Tokens per second with three digits or more; a dash for None."""
    if tokens_per_second is None:
        return "-"
    digits = 0 if tokens_per_second >= 100 else 1 if tokens_per_second >= 10 else 2
    return f"{tokens_per_second:.{digits}f}"


def percent(share: float | None) -> str:
    """A share; a dash for None."""
    return "-" if share is None else f"{100 * share:.0f}%"


def _work_rate(row: Row) -> str:
    """What the model did per second of what bounds it."""
    if row.bound == "memory":
        return f"{row.gigabytes_per_second:.1f} GB/s"
    return "-" if row.bound is None else f"{row.gigaoperations_per_second:.0f} GOP/s"


def _machine_rate(row: Row) -> str:
    """What the machine can do of it."""
    if row.bound == "memory":
        return f"{row.read_bandwidth:.1f} GB/s"
    if row.gigaoperations_per_second is None or row.ceiling_tokens_per_second is None:
        return "-"
    # What is computed in fp32 counts at the peak of that.
    return f"{row.gigaoperations_per_second / row.tokens_per_second * row.ceiling_tokens_per_second:.0f} GOP/s"


def _markdown_cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _csv_cell(value: Any) -> Any:
    return ";".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else value
