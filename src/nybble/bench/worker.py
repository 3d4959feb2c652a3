"""A worker process: reads a job from standard input, measures, and writes events to standard output, a line each.

Run as ``python -m nybble.bench.worker``, also by the Pythons of other engines: standard library only until the engine
of the job is imported.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from ..errors import NybbleError
from .job import OURS, Job
from .subject import Emit, Subject, take_samples


def main() -> int:
    """Measure the job on standard input; 0 when all is measured, 1 after a ``failed`` event."""
    job = Job.from_json(sys.stdin.readline())
    emit = _emitter(_claim_output())
    try:
        start = time.perf_counter()
        subject = load_subject(job)
        emit({"event": "loaded", "facts": dict(subject.facts), "seconds": time.perf_counter() - start})
        take_samples(subject, job.cases, job.repeats, emit)
    except NybbleError as error:
        emit({"event": "failed", "kind": type(error).__name__, "message": str(error)})
        return 1
    except MemoryError:
        emit({"event": "failed", "kind": "MemoryError", "message": "out of memory"})
        return 1
    emit({"event": "done"})
    return 0


def load_subject(job: Job) -> Subject:
    """The engine of the job with its model. Each engine is a module with a function ``load(job)``."""
    if job.operation is not None:
        module = "linear"
    else:
        module = "ours" if job.engine == OURS else f"peers.{job.engine.replace('-', '_')}"
    subject: Subject = importlib.import_module(f".{module}", __package__).load(job)
    return subject


def _claim_output() -> TextIO:
    """Standard output for events alone: what libraries print there goes to standard error."""
    sys.stdout.flush()
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return ours


def _emitter(output: TextIO) -> Emit:
    def emit(event: Mapping[str, Any]) -> None:
        output.write(json.dumps(event) + "\n")
        output.flush()

    return emit


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Some engines crash while they are taken down; by now all has been said.
    os._exit(code)
