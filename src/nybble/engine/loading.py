"""From a model's name to a model ready to run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import _native
from ..errors import DownloadFailed, InvalidParameter
from ..formats.file_identity import identify
from ..graph.dispatch import Accuracy, isas_of, leading_isa, selected_isa
from ..graph.footprint import Footprint
from ..graph.kv_type import KVType
from ..hub.resolve import resolve
from ..machine.cpus import allowed_cpus
from ..machine.memory import available_memory
from ..machine.placement import Crew, assemble
from ..packed.entry import BrokenEntry
from ..packed.store import PackedStore, Source
from ..tokenizer.chat_template import template_from_gguf
from .llm import LLM, ModelInfo
from .memory import MemoryNeeded, fitting_context
from .sampling import default_origins, defaults_from_metadata
from .session import STEP_TOKENS, Runner
from .stored_model import ModelFacts, restore_facts, restore_program
from .stored_model import store as store_model

if TYPE_CHECKING:
    import logging

    from ..formats.checkpoint import Checkpoint
    from ..graph.plan import Plan
    from ..hub.progress import Progress

SMALLEST_STORED_BYTES = 8 << 20
"""Less than this is packed sooner than it is found."""

LONGEST_DEFAULT_CONTEXT = 8192
"""A model that allows more gets this much unless asked for more: the KV cache is reserved for all of it."""

MOST_THREADS = 1024


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    context_length: int | None = None,
    accuracy: str = "int8",
    kv: str = "fp16",
    offline: bool = False,
    progress: Progress | None = None,
) -> LLM:
    """Load a model.

    ``model`` is a name from ``nybble models``, a path to a GGUF or ONNX file or to a folder of ONNX or safetensors
    (whose floats are quantised: linears to Q4_0, embedding and head to Q8_0), or
    ``org/repo[:file, quantisation or folder]`` of a hub; None is the default model. What is not here is fetched,
    unless ``offline``; ``progress`` is told how far fetching and packing are.
    ``threads``: by default one for each CPU this process may use. ``context_length`` in tokens: by default the model's
    own, at most 8192, less if memory is short. ``accuracy``: "int8" or "f32" activations in the linears.
    ``kv``: what the KV cache keeps, "fp32", "fp16", "bf16", or "int8", which takes half the memory of fp16.

    Raises :class:`~nybble.errors.NybbleError`: not found, not fetched, malformed, unsupported, or too large.
    """
    # Mistakes are told before a download begins.
    parsed, kept = Accuracy.parse(accuracy), KVType.parse(kv)
    _check_context_length(context_length)
    crew = start_threads(threads)
    isas = isas_of(crew.pool)
    path = resolve(None if model is None else str(model), offline=offline, progress=progress)
    return _load_file(path, crew.pool, isas, context_length, parsed, kept, progress)


def start_threads(threads: int | None) -> Crew:
    """``threads`` threads, or as many as suit this machine; raises :class:`InvalidParameter`.

    What keeps them from where they should be is logged.
    """
    crew = assemble(None if threads is None else thread_count(threads))
    for note in crew.notes:
        _log().warning("threads: %s", note)
    return crew


def plan_file(path: Path, accuracy: Accuracy, isa: str | None = None) -> tuple[Checkpoint, Plan]:
    """Open a model file and decide what it will become here, or on ``isa``, without packing anything."""
    # Imported only now: what the packed cache holds needs none of it.
    from ..formats.open import open_checkpoint
    from ..graph.plan import plan
    from ..models.build import build_graph

    checkpoint = open_checkpoint(path)
    return checkpoint, plan(build_graph(checkpoint), accuracy, isa or selected_isa())


def _load_file(
    path: Path,
    threads: _native.ThreadPool,
    isas: Sequence[str],
    context_length: int | None,
    accuracy: Accuracy,
    kv: KVType,
    progress: Progress | None,
) -> LLM:
    start = time.perf_counter()
    store, options = _packed_store(), f"{accuracy.value}-{leading_isa(isas)}"
    loaded = store and _from_cache(store, path, options, threads, isas, context_length, kv)
    if not loaded:
        loaded = _from_model(store, path, options, threads, isas, context_length, accuracy, kv, progress)
    program, facts, memory = loaded
    shape = facts.footprint
    runner = Runner(program, shape.layers, shape.kv_heads, shape.head_dim, kv, shape.vocabulary, threading.Lock())
    info = ModelInfo(
        path=path,
        architecture=facts.architecture,
        isa=facts.isa,
        accuracy=accuracy,
        kv=kv,
        threads=threads.size,
        memory=memory,
        load_seconds=time.perf_counter() - start,
        sampling_origins=facts.origins,
    )
    return LLM(runner, facts.tokenizer, facts.template, memory.context_length, facts.sampling, info)


Loaded = tuple[_native.Program, ModelFacts, MemoryNeeded]


def _from_cache(
    store: PackedStore,
    path: Path,
    options: str,
    threads: _native.ThreadPool,
    isas: Sequence[str],
    context_length: int | None,
    kv: KVType,
) -> Loaded | None:
    """The model as an earlier start packed it; None if there is no such thing that is whole."""
    entry = store.find(path, options, threads.size)
    if entry is None:
        return None
    try:
        facts = restore_facts(entry, path)
        memory = _fitting(facts.footprint, facts.context_limit, context_length, kv)
        return restore_program(entry, facts, threads, isas), facts, memory
    except BrokenEntry as problem:
        _log().warning("the packed cache had to be made again for %s: its entry %s", path, problem)
        store.discard(path, options)
        return None


def _from_model(
    store: PackedStore | None,
    path: Path,
    options: str,
    threads: _native.ThreadPool,
    isas: Sequence[str],
    context_length: int | None,
    accuracy: Accuracy,
    kv: KVType,
    progress: Progress | None,
) -> Loaded:
    """The model packed from its files, and stored for the next start."""
    from ..graph.compile import compile_plan
    from ..tokenizer.gguf_tokenizer import tokenizer_from_gguf

    checkpoint, planned = plan_file(path, accuracy, leading_isa(isas))
    source = Source(identify(path), checkpoint.files)
    graph = planned.graph
    memory = _fitting(planned.footprint, graph.context_length, context_length, kv)
    metadata, file = checkpoint.metadata, str(path)
    facts = ModelFacts(
        architecture=checkpoint.architecture,
        isa=planned.isa,
        footprint=planned.footprint,
        context_limit=graph.context_length,
        tokenizer=tokenizer_from_gguf(metadata, file),
        template=template_from_gguf(metadata, file),
        sampling=defaults_from_metadata(metadata),
        origins=default_origins(metadata),
    )
    release = checkpoint.release
    del checkpoint, metadata  # a vocabulary's worth of strings, before the weights take their memory
    packed, total = 0, sum(matrix.bytes for matrix in planned.matrices.values())

    def report(size: int) -> None:
        nonlocal packed
        packed += size
        if progress is not None:
            progress(f"packing the weights of {path.name}", packed, total)

    compiled = compile_plan(planned, threads, release, report, isas)
    if store is not None and source.files and planned.weight_bytes >= SMALLEST_STORED_BYTES:

        def write(descriptor: int) -> None:
            store_model(descriptor, facts, planned, compiled, model=os.path.realpath(path), options=options)

        try:
            store.save(source, options, planned.weight_bytes, write)
        except OSError as problem:  # a cache that cannot be written is no reason not to answer
            _log().info("the packed weights of %s were not stored: %s", path, problem)
    return compiled.program, facts, memory


def _fitting(model: Footprint, limit: int, context_length: int | None, kv: KVType) -> MemoryNeeded:
    if context_length is not None and context_length > limit:
        raise InvalidParameter(f"context_length is {context_length}; this model takes from 1 to {limit} tokens")
    default = min(limit, LONGEST_DEFAULT_CONTEXT)
    return fitting_context(model, context_length, default, STEP_TOKENS, available_memory(), kv)


def _packed_store() -> PackedStore | None:
    try:
        return PackedStore()
    except DownloadFailed:  # nowhere to keep anything
        return None


def _log() -> logging.Logger:
    import logging

    return logging.getLogger(__name__)


def _check_context_length(context_length: int | None) -> None:
    """What can be told without the model, whose own limit is checked when it is read."""
    whole = isinstance(context_length, int) and not isinstance(context_length, bool)
    if context_length is not None and not (whole and context_length >= 1):
        raise InvalidParameter(f"context_length is {context_length!r}; it must be a whole number of at least 1")


def thread_count(threads: int | None) -> int:
    """``threads``, or one for each CPU this process may use; raises :class:`InvalidParameter`."""
    if threads is None:
        return allowed_cpus().count
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise InvalidParameter(f"threads is {threads!r}; it must be a whole number from 1 to {MOST_THREADS}")
    return threads
