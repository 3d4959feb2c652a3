"""``nybble explain``: what would run where, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidParameter
from . import options
from .output import one_line, print_json, work_progress
from .report import crew_facts, crew_lines, memory_facts, memory_line
from .table import columns, print_table

if TYPE_CHECKING:
    from ..bench.step_times import StepTimes
    from ..engine.explanation import Explanation, TensorExplanation
    from ..machine.placement import Crew

EXAMPLES = (
    "nybble explain",
    "nybble explain models/tiny.gguf --accuracy f32 --plan",
    "nybble explain model.onnx --runtime onnxruntime",
    "NYBBLE_ISA=portable nybble explain smollm2-135m --json",
)
RUNTIMES = ("nybble", "onnxruntime")

Runtime = Annotated[str, typer.Option(metavar="nybble|onnxruntime", help="Whose steps are measured.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Load and measure nothing: tell what would run, and why.")]


def explain(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP)] = None,
    runtime: Runtime = "nybble",
    plan: PlanOnly = False,
    accuracy: options.Accuracy = "int8",
    kv: options.KV = "fp16",
    threads: options.Threads = None,
    offline: options.Offline = False,
    as_json: options.Json = False,
) -> None:
    """Show what runs where, why, and how long each op of a step takes beside the least it could take.

    For each tensor: its type in the file, what it is packed as, the bytes a step of decoding reads of it, how far
    packing moves its weights (root mean square, relative), and the kernel that reads it. For a decode step and a step
    of prefill: the ops, equal ones of all layers together, their bytes, multiply-adds, least time on this machine, and
    measured time. An op five times over its least time is on a wrong path, not on a slow one: the likely cause is told.
    """
    if runtime not in RUNTIMES:
        raise InvalidParameter(f"--runtime is {runtime!r}; there are {' and '.join(RUNTIMES)}")
    if plan and runtime != RUNTIMES[0]:
        raise InvalidParameter("--plan tells what nybble would run; leave out --runtime")
    explained: Explanation | None = None
    crew: Crew | None = None
    staging: dict[str, str] = {}
    if runtime != RUNTIMES[0]:
        steps = _steps_of_onnxruntime(model, threads, offline)
    else:
        crew, explained, staging, steps = _explained(model, accuracy, kv, threads, offline, plan)
    if as_json:
        facts = (
            {}
            if explained is None or crew is None
            else {**_facts(explained), "threads": crew_facts(crew), "not_through_tcm": staging}
        )
        print_json({**facts, "steps": [asdict(step) for step in steps]})
        return
    if explained is not None and crew is not None:
        _print_tables(explained)
        for line in (*crew_lines(crew), *_staging_lines(staging), *_own_kernels(explained, crew)):
            print(line)
    for step in steps:
        _print_step(step)


def _explained(
    model: str | None, accuracy: str, kv: str, threads: int | None, offline: bool, plan_only: bool
) -> tuple[Crew, Explanation, dict[str, str], list[StepTimes]]:
    from ..engine import explanation
    from ..engine.loading import plan_file, thread_count
    from ..graph.dispatch import Accuracy, isas_of, leading_isa
    from ..graph.kv_type import KVType
    from ..hub.resolve import resolve
    from ..machine.placement import assemble

    parsed, kept = Accuracy.parse(accuracy), KVType.parse(kv)
    crew = assemble(None if threads is None else thread_count(threads))
    isa = leading_isa(isas_of(crew.pool))
    with work_progress() as progress:
        checkpoint, plan = plan_file(resolve(model, offline=offline, progress=progress), parsed, isa)
        explained = explanation.explain(checkpoint, plan, kept, progress)
    staging = explanation.staging_refusals(plan, crew.pool)
    if plan_only:
        return crew, explained, staging, []
    from ..bench.step_times import measure_steps

    return crew, explained, staging, measure_steps(checkpoint, plan, kept, crew.pool)


def _staging_lines(refusals: dict[str, str]) -> list[str]:
    """Which linears of a decode step take their weights through tightly coupled memory, and why the others do not."""
    alike: dict[str, list[str]] = {}
    for label, refusal in refusals.items():
        alike.setdefault(refusal, []).append(label)
    staged = len(alike.pop("", ()))
    lines = (
        [f"    {staged} of {len(refusals)} linears of a decode step take their weights through it"] if refusals else []
    )
    for refusal, (first, *others) in alike.items():
        lines.append(f"    not {first}{f' and {len(others)} more' if others else ''}: {refusal}")
    return lines


def _own_kernels(explained: Explanation, crew: Crew) -> list[str]:
    """What threads take that do not run the instruction set which the kernels were chosen for."""
    from ..graph.dispatch import isas_of, linear_kernels, own_kernel

    chosen = {tensor.kernel for tensor in explained.tensors}
    kernels = [kernel for kernel in linear_kernels() if kernel.name in chosen]
    return [
        f"  {isa}: {own.name} where the others run {kernel.name}"
        for isa in dict.fromkeys(isas_of(crew.pool))
        for kernel in kernels
        if (own := own_kernel(kernel, isa)) != kernel
    ]


def _steps_of_onnxruntime(model: str | None, threads: int | None, offline: bool) -> list[StepTimes]:
    from ..bench.ceilings import known_ceilings
    from ..bench.onnxruntime_times import measure_onnxruntime
    from ..engine.loading import thread_count
    from ..graph.dispatch import selected_isa
    from ..hub.resolve import resolve
    from ..inspection.inspect import model_file
    from ..machine.description import describe

    path = model_file(resolve(model, offline=offline))
    count = thread_count(threads)
    (ceilings,) = known_ceilings([count], selected_isa(), describe())
    return measure_onnxruntime(path, count, asdict(ceilings))


def _print_step(step: StepTimes) -> None:
    print()
    print(f"{'a decode step' if step.rows == 1 else f'a step of {step.rows} tokens'}: {1e3 * step.wall_seconds:.2f} ms")
    total = sum(op.seconds for op in step.ops)
    print_table(
        columns("OP", "COUNT>", "KERNEL", "BYTES>", "MULTIPLY-ADDS>", "LEAST>", "TIME>", "RATIO>", "SHARE>"),
        [
            (
                op.kind,
                str(op.count),
                op.kernel,
                f"{op.bytes:,}" if op.bytes else "",
                f"{op.products:,}" if op.products else "",
                "" if op.floor_seconds is None else f"{1e6 * op.floor_seconds:,.0f} us",
                f"{1e6 * op.seconds:,.0f} us",
                "" if op.ratio is None else f"{op.ratio:.1f}",
                f"{100 * op.seconds / total:.0f} %",
            )
            for op in step.ops
        ],
    )
    for cause in dict.fromkeys(op.cause for op in step.ops if op.cause):
        wrong = [f"{op.kind} ({op.ratio:.0f} times the least)" for op in step.ops if op.cause == cause]
        print(one_line(f"wrong path, not slow path: {', '.join(wrong)}: {cause}"))


def _facts(explained: Explanation) -> dict[str, Any]:
    """Sizes in bytes."""
    return {
        "path": str(explained.path),
        "architecture": explained.architecture,
        "isa": explained.isa,
        "accuracy": explained.accuracy.value,
        "kv": explained.kv.value,
        "tensors": [asdict(tensor) for tensor in explained.tensors],
        "bytes_per_token": explained.bytes_per_token,
        "stored_bits_per_weight": explained.stored_bits_per_weight,
        "packed_bits_per_weight": explained.packed_bits_per_weight,
        "memory": memory_facts(explained.memory),
    }


def _print_tables(explained: Explanation) -> None:
    ways: dict[tuple[str, str], list[TensorExplanation]] = {}
    for tensor in explained.tensors:
        ways.setdefault((tensor.kernel, tensor.why), []).append(tensor)
    number = {way: f"[{index}]" for index, way in enumerate(ways, start=1)}
    print_table(
        columns("TENSOR", "STORED", "PACKED AS", "BYTES/TOKEN>", "ERROR", "HOW"),
        [
            (
                tensor.name,
                tensor.stored,
                tensor.packed,
                f"{tensor.bytes_per_token:,}",
                "exact" if tensor.error is None else f"{tensor.error.relative_rms:.1e}",
                number[tensor.kernel, tensor.why],
            )
            for tensor in explained.tensors
        ],
    )
    print()
    print_table(
        columns("HOW", "KERNEL", "TENSORS>", "BYTES/TOKEN>", "WHY"),
        [
            (number[way], way[0], str(len(tensors)), f"{sum(tensor.bytes_per_token for tensor in tensors):,}", way[1])
            for way, tensors in ways.items()
        ],
    )
    print()
    print(
        f"model: {explained.path} ({explained.architecture}), {explained.isa}, {explained.accuracy.value} activations"
    )
    print(f"weights read per token: {explained.bytes_per_token:,} bytes")
    print(
        f"bits per weight: {explained.stored_bits_per_weight:.2f} in the file, "
        f"{explained.packed_bits_per_weight:.2f} packed"
    )
    print(f"memory: {memory_line(explained.memory)}")
