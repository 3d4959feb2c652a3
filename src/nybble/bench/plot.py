"""Rows as a picture: a bar each, from the slowest sample to the fastest, and the ceiling."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BenchmarkFailed, InvalidParameter
from .formats import percent, rate
from .row import Row

_KINDS = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Raises :class:`InvalidParameter` for another kind of picture, :class:`BenchmarkFailed` without matplotlib."""
    if path.suffix not in _KINDS:
        raise InvalidParameter(f"--plot is {path}; expected a name that ends in {' or '.join(_KINDS)}")
    _library()


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw ``rows`` to ``path``, one panel for each test. Raises OSError."""
    library = _library()
    tests = list(dict.fromkeys((row.test, row.depth, row.batch) for row in rows))
    heights = [sum((row.test, row.depth, row.batch) == test for row in rows) for test in tests]
    figure, panels = library.subplots(
        len(tests),
        figsize=(8, 1 + 0.45 * sum(heights) + 0.6 * len(tests)),
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
        layout="constrained",
    )
    for test, panel in zip(tests, panels[:, 0], strict=True):
        _draw_panel(panel, [row for row in rows if (row.test, row.depth, row.batch) == test])
    models = ", ".join(dict.fromkeys(row.model for row in rows))
    figure.suptitle(f"{models}\n{', '.join(dict.fromkeys(row.cpu for row in rows))}", fontsize="medium")
    figure.savefig(path, dpi=150)
    library.close(figure)


def _draw_panel(panel: Any, rows: Sequence[Row]) -> None:
    first = rows[0]
    title = first.test
    title += f", behind {first.depth} tokens" if first.depth else ""
    title += f", {first.batch} sequences" if first.batch > 1 else ""
    panel.set_title(title, loc="left", fontsize="medium")
    places = range(len(rows))
    rates = [row.tokens_per_second for row in rows]
    colours = {engine: f"C{index}" for index, engine in enumerate(dict.fromkeys(row.engine for row in rows))}
    slower = [row.tokens_per_second - row.minimum for row in rows]
    faster = [row.maximum - row.tokens_per_second for row in rows]
    panel.barh(places, rates, xerr=(slower, faster), color=[colours[row.engine] for row in rows], capsize=2)
    for place, row in zip(places, rows, strict=True):
        text = f" {rate(row.tokens_per_second)}" + ("" if row.share is None else f" ({percent(row.share)})")
        panel.text(row.maximum, place, text, va="center", fontsize="small")
        if row.ceiling_tokens_per_second is not None:
            panel.plot([row.ceiling_tokens_per_second] * 2, [place - 0.4, place + 0.4], color="black")
    panel.set_yticks(places, [f"{row.engine}, {row.threads}T" for row in rows])
    panel.invert_yaxis()
    panel.set_xlabel("tokens/s; black: the ceiling" if any(row.share is not None for row in rows) else "tokens/s")
    panel.margins(x=0.15)


def _library() -> Any:
    try:
        importlib.import_module("matplotlib").use("Agg")  # files only: there may be no screen
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise BenchmarkFailed("--plot needs matplotlib: pip install 'nybble[plot]'") from None
