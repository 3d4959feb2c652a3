"""One line of a benchmark: what was measured, what the ceiling is, and all that is needed to judge it."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .cases import Case
from .statistics import Summary, quiet
from .work import LinearWork, Work


@dataclass(frozen=True, slots=True)
class Row:
    """A case of one engine with one number of threads; rates are those of all threads and sequences together.

    ``tokens_per_second`` is the median of ``samples``, of all processes; samples during which other processes were
    busy (``busy`` says which) do not count unless all are such. ``minimum`` and ``maximum`` are of the same samples.
    ``bytes_per_token`` are the packed weights of the linears read for a token, ``kv_bytes_per_token`` the KV cache read
    while generating; ``gigabytes_per_second`` and ``gigaoperations_per_second`` follow from the weights, a multiply-add
    being two operations. ``read_bandwidth`` (GB/s) is that of the memory that holds these weights, measured in the same
    process just before and after; ``int8_peak`` (GOP/s) is the highest that any process measured. ``share`` is the part
    of ``ceiling_tokens_per_second`` reached, which counts weights only; ``share_with_kv`` counts the KV cache too.
    ``bound`` is what the ceiling comes from, memory or arithmetic. What is not known of other engines is None.
    """

    engine: str
    model: str
    model_type: str | None
    model_bytes: int | None
    parameters: int | None
    bits_per_weight: float | None
    accuracy: str | None
    test: str
    threads: int
    depth: int
    batch: int
    tokens_per_second: float
    minimum: float
    maximum: float
    samples: tuple[float, ...]
    busy: tuple[bool, ...]
    processes: int
    process_medians: tuple[float, ...]
    bytes_per_token: float | None
    kv_bytes_per_token: float | None
    gigabytes_per_second: float | None
    gigaoperations_per_second: float | None
    read_bandwidth: float | None
    int8_peak: float | None
    ceiling_tokens_per_second: float | None
    share: float | None
    share_with_kv: float | None
    bound: str | None
    cpu: str
    isa: str | None
    version: str
    revision: str | None
    measured_at: str

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """What makes rows of two runs comparable."""
        return (self.engine, *self.work_key)

    @property
    def work_key(self) -> tuple[str, int, int, int]:
        """What makes rows of two engines comparable."""
        return (self.test, self.threads, self.depth, self.batch)

    @property
    def busy_samples(self) -> int:
        """How many samples others disturbed."""
        return sum(self.busy)

    @property
    def summary(self) -> Summary:
        """Of the samples that count."""
        return Summary.of(quiet(self.samples, self.busy))


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process measured of a case: seconds of each sample, which of them were disturbed, and the ceilings just
    before and after (none if the engine has no way to tell)."""

    seconds: tuple[float, ...]
    busy: tuple[bool, ...]
    ceilings: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where and when rows were measured."""

    cpu: str
    version: str
    revision: str | None
    measured_at: str


_NEEDING_CEILINGS = (
    "bytes_per_token",
    "kv_bytes_per_token",
    "gigabytes_per_second",
    "gigaoperations_per_second",
    "read_bandwidth",
    "int8_peak",
    "ceiling_tokens_per_second",
    "share",
    "share_with_kv",
    "bound",
)


def build_row(
    engine: str,
    model: str,
    accuracy: str | None,
    threads: int,
    case: Case,
    measured: Sequence[Measured],
    facts: Mapping[str, Any],
    provenance: Provenance,
) -> Row:
    """The row of ``case`` from what each process measured, at least one; ``facts`` are the engine's own."""
    rates = [[case.tokens / seconds for seconds in process.seconds] for process in measured]
    samples = tuple(rate for of_process in rates for rate in of_process)
    busy = tuple(flag for process in measured for flag in process.busy)
    medians = tuple(
        statistics.median(quiet(of_process, process.busy)) for of_process, process in zip(rates, measured, strict=True)
    )
    summary = Summary.of(quiet(samples, busy))
    return Row(
        engine=engine,
        model=model,
        model_type=facts.get("model_type"),
        model_bytes=facts.get("model_bytes"),
        parameters=facts.get("parameters"),
        bits_per_weight=facts.get("bits_per_weight"),
        accuracy=accuracy,
        test=case.test,
        threads=threads,
        depth=case.depth,
        batch=case.batch,
        tokens_per_second=summary.median,
        minimum=summary.minimum,
        maximum=summary.maximum,
        samples=samples,
        busy=busy,
        processes=len(measured),
        process_medians=medians,
        **_against_ceilings(case, summary.median, medians, measured, facts.get("work")),
        cpu=provenance.cpu,
        isa=facts.get("isa"),
        version=facts.get("version", provenance.version),
        revision=provenance.revision,
        measured_at=provenance.measured_at,
    )


def _against_ceilings(
    case: Case,
    rate: float,
    medians: Sequence[float],
    measured: Sequence[Measured],
    work_facts: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The fields of a row that need the work and the ceilings; None in all of them where those are not known."""
    if work_facts is None or not all(process.ceilings for process in measured):
        return dict.fromkeys(_NEEDING_CEILINGS)
    work = parse_work(work_facts)
    of_processes = _combined([process.ceilings for process in measured])
    ceilings = [case.tokens / work.seconds(case, found, with_kv=False) for found in of_processes]
    ceilings_with_kv = [case.tokens / work.seconds(case, found, with_kv=True) for found in of_processes]
    bytes_per_token = work.weight_bytes(case)
    return {
        "bytes_per_token": bytes_per_token,
        "kv_bytes_per_token": work.cache_bytes(case),
        "gigabytes_per_second": bytes_per_token * rate / 1e9,
        "gigaoperations_per_second": 2 * work.products(case) * rate / 1e9,
        "read_bandwidth": statistics.median(found["read_bandwidth"] for found in of_processes) / 1e9,
        "int8_peak": 2 * of_processes[0]["int8_peak"] / 1e9,
        "ceiling_tokens_per_second": statistics.median(ceilings),
        # Memory may lie well in one process and badly in the next: each is judged by its own ceiling.
        "share": statistics.median(map(operator.truediv, medians, ceilings)),
        "share_with_kv": statistics.median(map(operator.truediv, medians, ceilings_with_kv)),
        "bound": statistics.mode(work.bound(case, found) for found in of_processes),
    }


def _combined(of_processes: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """For each process the highest bandwidth that it found, and the highest peaks that any found.

    Neighbours can only lower what is measured. Bandwidth differs between processes, as their memory lies elsewhere;
    peaks do not.
    """
    everything = [found for of_process in of_processes for found in of_process]
    peaks = {name: max(found[name] for found in everything) for name in ("int8_peak", "fp32_peak")}
    return [{"read_bandwidth": max(found["read_bandwidth"] for found in each), **peaks} for each in of_processes]


def parse_work(facts: Mapping[str, Any]) -> Work:
    """The :class:`Work` that ``dataclasses.asdict`` made ``facts`` of."""
    return Work(LinearWork(**facts["body"]), LinearWork(**facts["head"]), facts["kv_bytes"], facts["step_rows"])
