"""A loaded model in the packed cache: what is kept of it, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..graph.footprint import Footprint
from ..graph.recording import replay
from ..packed.entry import BrokenEntry, Entry, write_entry
from ..tokenizer.chat_template import TemplateSource
from ..tokenizer.stored import restore_tokenizer, store_tokenizer
from .sampling import SamplingOptions

if TYPE_CHECKING:
    from ..graph.compile import CompiledModel
    from ..graph.plan import Plan
    from ..tokenizer.tokenizer import Tokenizer

_ANYTHING_WRONG = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


class ModelFacts(NamedTuple):
    """All of a model but its program."""

    architecture: str
    isa: str
    footprint: Footprint
    context_limit: int
    tokenizer: Tokenizer
    template: TemplateSource | None
    sampling: SamplingOptions
    origins: Mapping[str, str]


def store(descriptor: int, facts: ModelFacts, plan: Plan, compiled: CompiledModel, *, model: str, options: str) -> None:
    """Write an entry to an open file. Raises OSError."""
    tokenizer, tokenizer_parts = store_tokenizer(facts.tokenizer) or (None, [])
    description = {
        "model": model,
        "options": options,
        "architecture": facts.architecture,
        "isa": facts.isa,
        "footprint": facts.footprint,
        "context_limit": facts.context_limit,
        "tokenizer": tokenizer,
        "template": facts.template,
        "sampling": asdict(facts.sampling),
        "origins": dict(facts.origins),
        "inverse_frequencies": plan.graph.inverse_frequencies.tolist(),
        "matrices": [
            [
                packed.offset,
                plan.graph.tensors[stack[0]].packed_from.name,
                packed.n,
                packed.k,
                packed.wide_scales,
                packed.layout,
            ]
            for stack, packed in plan.matrices.items()
        ],
        "calls": compiled.recording.calls,
    }
    parts: list[bytes | bytearray] = [compiled.recording.vectors, *tokenizer_parts]
    write_entry(descriptor, description, parts, compiled.memory, facts.footprint.weight_bytes)


def restore_facts(entry: Entry, path: Path) -> ModelFacts:
    """All of the stored model of ``path`` but its program. Raises BrokenEntry, and as reading the model does where its
    tokeniser cannot be stored.
    """
    stored, file = entry.description, str(path)
    if stored.get("tokenizer") is None:
        from ..formats.open import open_checkpoint
        from ..tokenizer.gguf_tokenizer import tokenizer_from_gguf

        tokenizer = tokenizer_from_gguf(open_checkpoint(path).metadata, file)
    try:
        if stored["tokenizer"] is not None:
            tokenizer = restore_tokenizer(stored["tokenizer"], entry.parts[1:], file)
        template = stored["template"]
        weight_bytes, layers, kv_heads, head_dim, vocabulary, slots = stored["footprint"]
        return ModelFacts(
            architecture=stored["architecture"],
            isa=stored["isa"],
            footprint=Footprint(weight_bytes, layers, kv_heads, head_dim, vocabulary, tuple(map(tuple, slots))),
            context_limit=stored["context_limit"],
            tokenizer=tokenizer,
            template=None if template is None else TemplateSource(template[0], template[1], template[2], file),
            sampling=SamplingOptions(**stored["sampling"]),
            origins=stored["origins"],
        )
    except _ANYTHING_WRONG as error:
        raise BrokenEntry(f"cannot be understood: {error!r}") from error


def restore_program(
    entry: Entry, facts: ModelFacts, threads: _native.ThreadPool, isas: Sequence[str]
) -> _native.Program:
    """The program for ``threads`` that run ``isas``, its weights in memory. Raises BrokenEntry, MemoryError."""
    stored: dict[str, Any] = entry.description
    shape = facts.footprint
    if facts.isa not in isas:
        raise BrokenEntry(f"was packed for {facts.isa!r}, which no thread runs")
    try:
        heads = (shape.vocabulary, shape.layers, shape.kv_heads, shape.head_dim)
        program = _native.Program(threads, isas, *heads, stored["inverse_frequencies"])
        matrices = [_native.packed_view(entry.memory, *matrix) for matrix in stored["matrices"]]
        replay(program, stored["calls"], matrices, entry.parts[0])
    except _ANYTHING_WRONG as error:
        raise BrokenEntry(f"cannot be understood: {error!r}") from error
    entry.finish()
    return program
