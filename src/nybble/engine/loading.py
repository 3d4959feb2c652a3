"""From a model's name to a model ready to run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .. import _native
from ..errors import InvalidParameter, TemplateError
from ..formats.checkpoint import Checkpoint
from ..formats.open import open_checkpoint
from ..graph.compile import compile_plan
from ..graph.dispatch import Accuracy, selected_isa
from ..graph.plan import Plan, plan
from ..hub.resolve import resolve
from ..machine.cpus import allowed_cpus
from ..machine.memory import available_memory
from ..models.build import build_graph
from ..tokenizer.chat_template import ChatTemplate, chat_template_from_gguf
from ..tokenizer.gguf_tokenizer import tokenizer_from_gguf
from .llm import LLM, ModelInfo
from .memory import fitting_context
from .sampling import default_origins, defaults_from_metadata
from .session import STEP_TOKENS, Runner

if TYPE_CHECKING:
    from ..hub.progress import Progress

LONGEST_DEFAULT_CONTEXT = 8192
"""A model that allows more gets this much unless asked for more: the KV cache is reserved for all of it."""

MOST_THREADS = 1024


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    context_length: int | None = None,
    accuracy: str = "int8",
    offline: bool = False,
    progress: Progress | None = None,
) -> LLM:
    """Load a model.

    ``model`` is a name from ``nybble models``, a path to a GGUF file, or ``org/repo[:file-or-quant]`` of a hub; None is
    the default model. What is not here is fetched, unless ``offline``; ``progress`` is told how far fetching and
    packing are.
    ``threads``: by default one for each CPU this process may use. ``context_length`` in tokens: by default the model's
    own, at most 8192, less if memory is short. ``accuracy``: "int8" or "f32" activations in the linears.

    Raises :class:`~nybble.errors.NybbleError`: not found, not fetched, malformed, unsupported, or too large.
    """
    # Mistakes are told before a download begins.
    count, parsed = _thread_count(threads), Accuracy.parse(accuracy)
    _check_context_length(context_length)
    selected_isa()
    path = resolve(None if model is None else str(model), offline=offline, progress=progress)
    return _load_file(path, count, context_length, parsed, progress)


def plan_file(path: Path, accuracy: Accuracy) -> tuple[Checkpoint, Plan]:
    """Open a model file and decide what it will become here, without packing anything."""
    checkpoint = open_checkpoint(path)
    return checkpoint, plan(build_graph(checkpoint), accuracy, selected_isa())


def _load_file(
    path: Path,
    threads: int,
    context_length: int | None,
    accuracy: Accuracy,
    progress: Progress | None,
) -> LLM:
    start = time.perf_counter()
    checkpoint, planned = plan_file(path, accuracy)
    limit = planned.graph.context_length
    if context_length is not None and context_length > limit:
        raise InvalidParameter(f"context_length is {context_length}; this model takes from 1 to {limit} tokens")
    memory = fitting_context(
        planned, context_length, min(limit, LONGEST_DEFAULT_CONTEXT), STEP_TOKENS, available_memory()
    )
    metadata, file = checkpoint.metadata, str(path)
    architecture, release = checkpoint.architecture, checkpoint.release
    tokenizer, template = tokenizer_from_gguf(metadata, file), _template(metadata, file)
    sampling, origins = defaults_from_metadata(metadata), default_origins(metadata)
    del checkpoint, metadata  # a vocabulary's worth of strings, before the weights take their memory
    packed, total = 0, sum(matrix.bytes for matrix in planned.matrices.values())

    def report(size: int) -> None:
        nonlocal packed
        packed += size
        if progress is not None:
            progress(f"packing the weights of {path.name}", packed, total)

    program = compile_plan(planned, _native.ThreadPool(threads), release, report).program
    graph = planned.graph
    runner = Runner(program, graph.layers, graph.kv_heads, graph.head_dim, graph.vocabulary, threading.Lock())
    info = ModelInfo(
        path=path,
        architecture=architecture,
        isa=planned.isa,
        accuracy=accuracy,
        threads=threads,
        memory=memory,
        load_seconds=time.perf_counter() - start,
        sampling_origins=origins,
    )
    return LLM(runner, tokenizer, template, memory.context_length, sampling, info)


def _template(metadata: Mapping[str, object], file: str) -> ChatTemplate | TemplateError | None:
    try:
        return chat_template_from_gguf(metadata, file)
    except TemplateError as error:
        return error  # the model can still continue plain text


def _check_context_length(context_length: int | None) -> None:
    """What can be told without the model, whose own limit is checked when it is read."""
    whole = isinstance(context_length, int) and not isinstance(context_length, bool)
    if context_length is not None and not (whole and context_length >= 1):
        raise InvalidParameter(f"context_length is {context_length!r}; it must be a whole number of at least 1")


def _thread_count(threads: int | None) -> int:
    if threads is None:
        return allowed_cpus().count
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise InvalidParameter(f"threads is {threads!r}; it must be a whole number from 1 to {MOST_THREADS}")
    return threads
