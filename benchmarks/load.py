"""Seconds until a model is loaded: packed anew, packed anew from a disk that has to be read, and from the packed cache.

A random model of a published shape, in fresh processes that take turns. Printed as JSON: medians and all samples, in
seconds, of `load` (in the process, imports not counted) and of the whole process.
load.py [SHAPE] > "$(./results_folder.sh)/load.json"
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from nybble.bench.job import RandomModel, WeightFormat
from nybble.bench.provenance import provenance
from nybble.bench.shape_file import write_gguf
from nybble.packed.store import PackedStore

PROCESSES = 7
LOAD = "import sys, nybble; print(nybble.load(sys.argv[1]).info.load_seconds)"
CACHES = ("anew", "anew, disk read", "warm", "warm, disk read")


def forget(path: Path) -> None:
    """Have the system drop a file's pages, so that it is read from the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sample(path: Path, cache: str) -> tuple[float, float]:
    """Seconds of loading, and of the process."""
    store = PackedStore()
    if cache.startswith("anew"):
        store.remove(None)
    if cache.endswith("disk read"):
        for file in (path, *store.directory.glob("*.packed")):
            forget(file)
    start = time.perf_counter()
    process = subprocess.run([sys.executable, "-c", LOAD, path], capture_output=True, text=True, check=True)
    return float(process.stdout), time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    shape = sys.argv[1] if len(sys.argv) > 1 else "qwen2.5-0.5b"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NYBBLE_CACHE"] = folder
        path = Path(folder) / "model.gguf"
        write_gguf(RandomModel(shape, WeightFormat(4, 32)), path)
        time.sleep(3)  # younger files are not stored
        samples: dict[str, list[tuple[float, float]]] = {cache: [] for cache in CACHES}
        for _ in range(PROCESSES):
            for cache in CACHES:
                samples[cache].append(sample(path, cache))
        size = path.stat().st_size
        packed = sum(model.bytes for model in PackedStore().models())
    found = {
        "model": f"{shape} W4B32",
        "file_bytes": size,
        "packed_bytes": packed,
        "load_seconds": {cache: statistics.median(load for load, _ in taken) for cache, taken in samples.items()},
        "process_seconds": {cache: statistics.median(whole for _, whole in taken) for cache, taken in samples.items()},
        "samples_seconds": samples,
        **asdict(provenance()),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
