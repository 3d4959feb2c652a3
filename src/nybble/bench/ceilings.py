"""What this machine can do at best, measured in a second and remembered."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import __version__, _native
from ..errors import NybbleError
from ..graph.dispatch import nearest_isas
from ..hub.cache import default_directory
from ..machine.description import MachineDescription
from ..machine.placement import assemble

READ_SECONDS = 0.1
PEAK_SECONDS = 0.03
"""How long each is measured; the fastest pass counts."""

READ_BYTES = 256 << 20
"""Bytes read to measure bandwidth where there are no weights to read."""

USUAL_CACHE = 32 << 20
"""Taken to be the largest cache where the kernel does not say."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What ``threads`` threads do at best, all together, on ``isa``.

    ``read_bandwidth`` in bytes per second; peaks in multiply-adds per second: ``int8_peak`` of the inner loop of the
    linears on int8 activations, ``fp32_peak`` of fused multiply-adds.
    """

    threads: int
    isa: str
    read_bandwidth: float
    int8_peak: float
    fp32_peak: float


def measure_peaks(threads: _native.ThreadPool, isa: str) -> tuple[float, float]:
    """The int8 and fp32 multiply-adds per second of ``threads``, each on ``isa`` or on the best its CPU has instead."""
    isas = nearest_isas(threads, isa)
    return (
        _native.measure_int8_peak(threads, isas, PEAK_SECONDS),
        _native.measure_fp32_peak(threads, isas, PEAK_SECONDS),
    )


def largest_cache(machine: MachineDescription) -> int:
    """Bytes of the largest cache; bandwidth is that of memory behind it."""
    return max((cache.bytes for cache in machine.caches), default=USUAL_CACHE)


def measure_ceilings(threads: int, isa: str, machine: MachineDescription) -> Ceilings:
    """Measure now, the bandwidth on memory taken for it."""
    size = min(READ_BYTES, machine.memory_available.bytes // 4)
    pool = assemble(threads).pool
    bandwidth = _native.measure_memory_bandwidth(pool, size, largest_cache(machine), READ_SECONDS)
    return Ceilings(threads, isa, bandwidth, *measure_peaks(pool, isa))


def known_ceilings(
    counts: Sequence[int], isa: str, machine: MachineDescription, *, measure_again: bool = False
) -> list[Ceilings]:
    """The ceilings with each of ``counts`` threads, measured where nobody has yet on this processor."""
    file = _file()
    known = {} if measure_again else _read(file)
    found = []
    for threads in counts:
        key = f"{machine.processor}, {isa}, {threads} threads, nybble {__version__}"
        ceilings = _parse(known.get(key))
        if ceilings is None or (ceilings.threads, ceilings.isa) != (threads, isa):
            ceilings = measure_ceilings(threads, isa, machine)
            _remember(file, key, ceilings)
        found.append(ceilings)
    return found


def _file() -> Path | None:
    try:
        return default_directory() / "ceilings.json"
    except NybbleError:  # no home directory: nothing is remembered
        return None


def _read(file: Path | None) -> dict[str, Any]:
    """What is remembered; nothing if the file is missing, unreadable or not ours."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(file.read_text(encoding="utf-8")) if file is not None else None
        if isinstance(content, dict):
            return content
    return {}


def _parse(entry: object) -> Ceilings | None:
    if not isinstance(entry, dict):
        return None
    try:
        ceilings = Ceilings(**entry)
        rates = (ceilings.read_bandwidth, ceilings.int8_peak, ceilings.fp32_peak)
        return ceilings if all(float(rate) > 0 for rate in rates) else None
    except (TypeError, ValueError):
        return None


def _remember(file: Path | None, key: str, ceilings: Ceilings) -> None:
    """Add an entry to the file, atomically. Where nothing can be written, it is measured each time."""
    if file is None:
        return
    text = json.dumps({**_read(file), key: asdict(ceilings)}, indent=2)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as new:
            new.write(text + "\n")
        Path(new.name).replace(file)
