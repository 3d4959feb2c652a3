"""What there is to say about an answer: its timings, and how the model was set up for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .output import megabytes

if TYPE_CHECKING:
    from ..engine.generation import TextStream
    from ..engine.llm import LLM
    from ..engine.memory import MemoryNeeded
    from ..machine.placement import Crew

_ENDINGS = {
    "length": "stopped at {max_tokens} tokens (--max-tokens)",
    "context": "stopped, the context of {context} tokens is full (--context)",
    "cancelled": "interrupted",
}


def timing_line(model: LLM, answer: TextStream) -> str:
    """One line on what loading and the answer took; what was not measured is left out."""
    timings = answer.timings
    parts = [f"load {model.info.load_seconds:.2f} s"]
    if timings.generated_tokens:
        parts.append(f"first token {timings.first_token:.2f} s")
    if timings.prefill_rate:
        parts.append(f"prefill {rate(timings.prefill_rate)}")
    if timings.decode_rate:
        parts.append(f"decode {rate(timings.decode_rate)}")
    parts.append(f"peak memory {megabytes(_peak())}")
    parts.append(counted(model.info.threads, "thread"))
    parts.append(model.info.isa)
    if ending := ending_line(model, answer):
        parts.append(ending)
    return ", ".join(parts)


def ending_line(model: LLM, answer: TextStream) -> str:
    """Why an answer ended before the model was done with it; empty if it was."""
    ending = _ENDINGS.get(answer.finish_reason or "", "")
    return ending.format(max_tokens=answer.options.max_tokens, context=model.context_length)


def setup_lines(model: LLM, given: Mapping[str, Any]) -> list[str]:
    """The model's file, its memory, and each sampling value with where it came from."""
    info, memory = model.info, model.info.memory
    lines = [
        f"model: {info.path} ({info.architecture})",
        f"kernels: {info.isa}, {info.accuracy.value} activations, {counted(info.threads, 'thread')}",
        f"context: {model.context_length} tokens, kept as {info.kv.value}",
        f"memory: {memory_line(memory)}",
    ]
    sampling = {**asdict(model.default_sampling), **given}
    for name, origin in {**info.sampling_origins, "seed": "nybble's default"}.items():
        value = sampling.get(name)
        if name in given:
            origin = f"--{name.replace('_', '-')}"
        text = "a fresh one" if name == "seed" and value is None else f"{value:g}" if name in sampling else "not used"
        lines.append(f"{name}: {text} ({origin})")
    return lines


def crew_facts(crew: Crew) -> dict[str, Any]:
    """Each thread, where it is, what was found there and what it runs."""
    from ..graph.dispatch import isas_of

    members = [{**asdict(member), "runs": isa} for member, isa in zip(crew.members, isas_of(crew.pool), strict=True)]
    return {"why": crew.why, "notes": crew.notes, "tcm": crew.tcm, "members": members}


def crew_lines(crew: Crew) -> list[str]:
    """Which thread runs which instruction set, where, and why; threads alike in all are told together."""
    from ..graph.dispatch import isas_of

    isas = isas_of(crew.pool)
    lines = [f"threads: {len(isas)}, {crew.why}"]
    alike: dict[tuple[str, int, str, str], list[str]] = {}
    for thread, (member, isa) in enumerate(zip(crew.members, isas, strict=True)):
        place = str(thread) if member.cpu is None else f"{thread} on CPU {member.cpu}"
        alike.setdefault((member.core, member.vector_bits, member.matrix_unit, isa), []).append(place)
    for (core, vector_bits, unit, isa), places in alike.items():
        about = [core] if core else []
        about += [f"VLEN {vector_bits}"] if vector_bits else []
        about += [f"{unit} tried out"] if unit != "none" else []
        lines.append(f"  {isa}: {', '.join(places)}" + (f" ({', '.join(about)})" if about else ""))
    if crew.tcm is not None:
        lines.append(f"  tightly coupled memory: {crew.tcm}")
    return [*lines, *(f"  {note}" for note in crew.notes)]


def memory_line(memory: MemoryNeeded) -> str:
    """What loading takes, by purpose."""
    return (
        f"{megabytes(memory.total)} at most: weights {megabytes(memory.weights)}, KV cache "
        f"{megabytes(memory.kv_cache)} for {memory.context_length} tokens, activations "
        f"{megabytes(memory.activations)}, runtime {megabytes(memory.runtime)}"
    )


def answer_facts(model: LLM, answer: TextStream) -> dict[str, Any]:
    """Everything about an answer, as data. Times in seconds, rates in tokens per second, sizes in bytes."""
    timings, info = answer.timings, model.info
    return {
        "text": answer.text,
        "ids": answer.ids,
        "finish_reason": answer.finish_reason,
        "timings": {
            "load": info.load_seconds,
            "first_token": timings.first_token,
            "prefill": timings.prefill,
            "decode": timings.decode,
            "prompt_tokens": timings.prompt_tokens,
            "reused_tokens": timings.reused_tokens,
            "generated_tokens": timings.generated_tokens,
            "prefill_rate": timings.prefill_rate,
            "decode_rate": timings.decode_rate,
        },
        "peak_memory": _peak(),
        "sampling": asdict(answer.options.sampling),
        "model": {
            "path": str(info.path),
            "architecture": info.architecture,
            "isa": info.isa,
            "accuracy": info.accuracy.value,
            "kv": info.kv.value,
            "threads": info.threads,
            "context_length": model.context_length,
            "memory": memory_facts(info.memory),
        },
    }


def memory_facts(memory: MemoryNeeded) -> dict[str, int]:
    """What loading takes in bytes, by purpose."""
    return {**asdict(memory), "total": memory.total}


def rate(tokens_per_second: float) -> str:
    """A speed for people."""
    return f"{tokens_per_second:.{0 if tokens_per_second >= 100 else 1}f} tok/s"


def counted(count: int, noun: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _peak() -> int:
    from ..machine.memory import peak_resident_bytes

    return peak_resident_bytes()
