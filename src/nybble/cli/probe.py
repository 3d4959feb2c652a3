"""``nybble probe``: what this machine offers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .output import megabytes, print_json
from .report import crew_facts, crew_lines
from .table import columns, print_table

if TYPE_CHECKING:
    from ..bench.ceilings import Ceilings
    from ..machine.description import Cache, MachineDescription

EXAMPLES = ("nybble probe", "nybble probe --json", "nybble probe --measure", "NYBBLE_ISA=portable nybble probe")


def probe(
    as_json: options.Json = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure what it can do at best once more.")] = False,
) -> None:
    """Show this machine: its CPU, memory, instruction sets, what it can do at best, and which kernels run here.

    What it can do at best is measured once, which takes a second, and remembered: bytes read from memory, and
    operations on int8 and fp32 (a multiply-add is two), per second.

    The environment variable NYBBLE_ISA selects an instruction set other than the best one. NYBBLE_TCM=off leaves the
    tightly coupled memory of a K3's cores alone.
    """
    from ..bench.ceilings import known_ceilings
    from ..graph.dispatch import isas_of, leading_isa, linear_kernels
    from ..machine.description import describe
    from ..machine.placement import assemble

    machine, crew = describe(), assemble(None)
    available, selected = crew.available, leading_isa(isas_of(crew.pool))
    counts = sorted({1, machine.allowance.count})
    ceilings = known_ceilings(counts, selected, machine, measure_again=measure)
    kernels = [(kernel, kernel.isa in available) for kernel in linear_kernels()]
    if as_json:
        facts = [
            {
                **asdict(kernel),
                "runs_here": runs_here,
                "why_not": None if runs_here else _refusal(kernel.isa),
                "selected": kernel.isa == selected,
            }
            for kernel, runs_here in kernels
        ]
        instruction_sets = {"available": available, "selected": selected}
        print_json(
            {
                "machine": asdict(machine),
                "threads": crew_facts(crew),
                "instruction_sets": instruction_sets,
                "ceilings": [asdict(of_count) for of_count in ceilings],
                "kernels": facts,
            }
        )
        return
    for line in _machine_lines(machine):
        print(line)
    for line in crew_lines(crew):
        print(line)
    print(f"instruction sets: {', '.join(available)}; selected: {selected}")
    print()
    _print_ceilings(ceilings)
    print()
    rows = []
    for kernel, runs_here in kernels:
        state = "yes, selected" if kernel.isa == selected else "yes" if runs_here else f"no: {_refusal(kernel.isa)}"
        rows.append((kernel.name, kernel.weights, kernel.activations, state))
    print_table(columns("KERNEL", "WEIGHTS", "ACTIVATIONS", "RUNS HERE"), rows)


def _print_ceilings(ceilings: list[Ceilings]) -> None:
    print_table(
        columns("THREADS>", "READ>", "INT8>", "FP32>"),
        [
            (
                str(of_count.threads),
                f"{of_count.read_bandwidth / 1e9:.1f} GB/s",
                f"{2 * of_count.int8_peak / 1e9:,.0f} GOP/s",
                f"{2 * of_count.fp32_peak / 1e9:,.0f} GFLOP/s",
            )
            for of_count in ceilings
        ],
    )


def _refusal(isa: str) -> str:
    return f"this CPU has no {isa}"


def _machine_lines(machine: MachineDescription) -> list[str]:
    allowance, memory = machine.allowance, machine.memory_available
    lines = [f"processor: {machine.processor} ({machine.architecture})"]
    if machine.board is not None:
        lines.append(f"board: {machine.board}")
    quota = "no quota" if allowance.quota is None else f"quota {allowance.quota:g}"
    shape = ""
    if 1 < machine.clusters < len(machine.cpus):
        shape += f", in {machine.clusters} clusters"
    if any(cpu.threads_of_core > 1 for cpu in machine.cpus):
        shape += f", {max(cpu.threads_of_core for cpu in machine.cpus)} for each core"
    limits = f"affinity {allowance.affinity}, {quota}"
    lines.append(f"CPUs: {allowance.count} usable of {machine.logical_cpus}{shape} ({limits})")
    if machine.caches:
        lines.append(f"caches: {', '.join(map(_cache_text, machine.caches))}")
    total = "" if machine.memory_bytes is None else f" of {megabytes(machine.memory_bytes)}"
    lines.append(f"memory: {megabytes(memory.bytes)} available{total} (limited by {memory.limited_by})")
    return lines


def _cache_text(cache: Cache) -> str:
    size = f"{cache.bytes >> 20} MiB" if cache.bytes >= 1 << 20 else f"{cache.bytes >> 10} KiB"
    return f"L{cache.level} {cache.kind} {cache.count} x {size}"
