"""Progress of a download: the callback the library reports to, and the bar the command line draws with it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_POLL_SECONDS = 0.2


class Progress(Protocol):
    """Called while a model is fetched, possibly from another thread.

    ``stage`` says what is going on, in words for people. ``done`` and ``total`` are bytes; ``total`` is None where the
    end is not known. A new stage begins when ``stage`` changes.
    """

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Note that ``done`` of ``total`` bytes of ``stage`` are done."""


class TerminalProgress:
    """A :class:`Progress` that draws bars on standard error; nothing is drawn, or imported, before the first call."""

    def __init__(self) -> None:
        self._bars: RichProgress | None = None
        self._stage = ""
        self._task: TaskID | None = None

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Move the stage's bar, or begin a new one."""
        if self._bars is None:
            self._bars = _new_bars()
            self._bars.start()
        if self._task is None or stage != self._stage:
            self._stage = stage
            self._task = self._bars.add_task(stage, total=total)
        self._bars.update(self._task, completed=done, total=total)


def _new_bars() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    return RichProgress(
        # Stages hold file names: brackets in them are no markup, and long ones are cut before the numbers are.
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=16),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        expand=True,
    )


@contextlib.contextmanager
def watched(directory: Path, stage: str, total: int, progress: Progress | None) -> Iterator[None]:
    """Report how ``directory`` grows while the block runs: the only view into a download another program does."""
    if progress is None:
        yield
        return
    before = _stored_bytes(directory)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_SECONDS):
            # Other programs keep a second copy for a moment; more than everything would look broken.
            progress(stage, min(max(0, _stored_bytes(directory) - before), total), total)

    progress(stage, 0, total)
    watcher = threading.Thread(target=watch, name="nybble-download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    progress(stage, total, total)


def _stored_bytes(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            # Files come and go while they are counted.
            with contextlib.suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total
