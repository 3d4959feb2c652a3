"""Worker processes: started fresh, one at a time, and listened to."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BenchmarkFailed, InvalidParameter
from .job import OURS, Job
from .row import Measured

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(slots=True)
class Outcome:
    """What a worker measured, by index of the case; ``skipped`` says why a case was not measured."""

    facts: dict[str, Any] = field(default_factory=dict)
    measured: dict[int, Measured] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)


def run_worker(job: Job, python: str | None, on_sample: Callable[[], None]) -> Outcome:
    """Measure ``job`` in a fresh process, with another engine's ``python`` if there is one.

    ``on_sample`` is called for each sample taken or left out. Raises :class:`BenchmarkFailed`, or
    :class:`InvalidParameter` where the worker did.
    """
    outcome = Outcome()
    finished = False
    with _worker(python) as (process, errors):
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # what it died of comes below
            process.stdin.write(job.to_json() + "\n")
            process.stdin.close()
        for line in process.stdout:
            event = json.loads(line)
            match event["event"]:
                case "loaded":
                    outcome.facts = event["facts"]
                case "sample":
                    on_sample()
                case "measured":
                    lists = (tuple(event[name]) for name in ("seconds", "busy", "ceilings"))
                    outcome.measured[event["case"]] = Measured(*lists)
                case "skipped":
                    outcome.skipped[event["case"]] = event["why"]
                    for _ in range(job.repeats):
                        on_sample()
                case "failed":
                    raise _failure(job, event)
                case "done":
                    finished = True
        code = process.wait()
        if not finished:
            raise BenchmarkFailed(f"{job.engine}: the worker process {_ending(code)}: {_last_line(errors)}")
    return outcome


@contextlib.contextmanager
def _worker(python: str | None) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A worker process that ends with the block, and the file of what it says on standard error."""
    with tempfile.TemporaryDirectory(prefix="nybble-bench-") as directory:
        errors = Path(directory) / "errors"
        # The worker is of this very nybble, wherever it lies. Another Python gets nothing else from here, as our
        # libraries may not fit it. What lies in the current directory must not be taken for a library.
        (Path(directory) / "nybble").symlink_to(PACKAGE, target_is_directory=True)
        known = os.environ.get("PYTHONPATH") if python is None else None
        path = directory if not known else f"{directory}{os.pathsep}{known}"
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
        command = [python or sys.executable, "-m", "nybble.bench.worker"]
        with errors.open("w", encoding="utf-8") as file:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env=environment,
                    text=True,
                    encoding="utf-8",
                )
            except OSError as error:
                raise BenchmarkFailed(f"cannot run {command[0]}: {error.strerror or error}") from error
        try:
            yield process, errors
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()


def _failure(job: Job, event: dict[str, Any]) -> Exception:
    message = event["message"]
    if event["kind"] == InvalidParameter.__name__:
        return InvalidParameter(message)
    return BenchmarkFailed(f"{job.engine}: {message}" if job.engine != OURS else message)


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended early with exit code {code}"


def _last_line(errors: Path) -> str:
    lines = [line for line in errors.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
