"""Decoding beside busy processes: threads that wait must not burn what their neighbours and they themselves need.

Tokens per second of greedy answers with 1 thread and with one for each CPU, alone and beside 1 and as many busy
processes as there are CPUs, and the CPU seconds an idle engine uses in a second after an answer. The kernel gives each
thread its share; what is lost beyond that is waiting. Printed as JSON: medians, and all samples.
busy_neighbour.py [MODEL] > "$(./results_folder.sh)/busy_neighbour.json"
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import nybble
from nybble.bench.provenance import provenance
from nybble.machine.cpus import allowed_cpus

REPEATS = 5
TOKENS = 64
PROMPT = "Tell me a long story about a ship."


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """That many busy processes."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rates(model: nybble.LLM) -> list[float]:
    """Tokens per second of several answers."""
    return [model.generate(PROMPT, max_tokens=TOKENS, temperature=0.0).timings.decode_rate for _ in range(REPEATS)]


def idle_seconds(model: nybble.LLM) -> float:
    """CPU seconds of this process in the second after an answer."""
    model.generate(PROMPT, max_tokens=4)
    began = time.process_time()
    time.sleep(1)
    return time.process_time() - began


def main() -> None:
    """Measure and print."""
    name = sys.argv[1] if len(sys.argv) > 1 else None
    cpus = allowed_cpus().count
    models = {threads: nybble.load(name, threads=threads) for threads in sorted({1, cpus})}
    found = []
    for count in sorted({0, 1, cpus}):
        with neighbours(count):
            for threads, model in models.items():
                rates(model)
                samples = rates(model)
                rate = statistics.median(samples)
                found.append({"threads": threads, "neighbours": count, "tokens_per_second": rate, "samples": samples})
    result = {
        "model": name or "default",
        "rows": found,
        "idle_cpu_seconds": {threads: idle_seconds(model) for threads, model in models.items()},
        **asdict(provenance()),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
