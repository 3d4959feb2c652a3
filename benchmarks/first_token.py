"""From the start of the process to the first token of an answer, Python, loading and the prompt included; peak memory.

Fresh processes of `nybble run` with a prompt of 64 tokens; the model is in the packed cache, and its file has been read
before. Printed as JSON: medians in seconds and bytes, and all samples.
first_token.py [MODEL] > "$(./results_folder.sh)/first_token.json"
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context

import nybble
from nybble.bench.provenance import provenance

PROCESSES = 15
TOKENS = 64
TEXT = "the quick brown fox jumps over a lazy dog while seven boats sail past an old stone bridge at dawn"


def prompt(name: str | None) -> str:
    """A text of TOKENS tokens."""
    model = nybble.load(name)
    source = TEXT.split()
    words: list[str] = []
    while len(model.tokenize(" ".join(words))) < TOKENS:
        words.append(source[len(words) % len(source)])
    return " ".join(words)


def sample(name: str | None, text: str) -> tuple[float, int]:
    """Seconds until the first byte of the answer, and the most memory the process took."""
    command = [sys.executable, "-m", "nybble", "run", "--raw", "--max-tokens", "8", text]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*command, *(["--model", name] if name else [])], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.read(1)
    seconds = time.perf_counter() - start
    process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"nybble run failed with exit code {process.returncode}")
    return seconds, usage.ru_maxrss * 1024


def main() -> None:
    """Measure and print."""
    name = sys.argv[1] if len(sys.argv) > 1 else None
    # In a process of its own: what a process took counts as its children's peak, too.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        text = pool.submit(prompt, name).result()
    sample(name, text)
    samples = [sample(name, text) for _ in range(PROCESSES)]
    seconds, peaks = zip(*samples, strict=True)
    found = {
        "model": name or "default",
        "prompt_tokens": TOKENS,
        "first_token_seconds": statistics.median(seconds),
        "peak_memory_bytes": statistics.median(peaks),
        "samples_seconds": seconds,
        "samples_bytes": peaks,
        **asdict(provenance()),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
