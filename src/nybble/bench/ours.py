"""nybble itself as a subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import _native
from ..engine.loading import plan_file, start_threads
from ..engine.memory import fitting_context
from ..engine.session import STEP_TOKENS
from ..formats.checkpoint import Checkpoint
from ..graph.compile import compile_plan
from ..graph.dispatch import Accuracy, isas_of, leading_isa
from ..graph.kv_type import KVType
from ..graph.ops import Linear
from ..graph.plan import Plan, plan
from ..machine.description import describe
from ..machine.memory import available_memory
from ..models.build import build_graph
from .ceilings import READ_SECONDS, largest_cache, measure_peaks
from .job import Job
from .random_model import random_checkpoint
from .subject import SteppingSubject
from .work import work_of


def load(job: Job) -> NybbleSubject:
    """The model of ``job``, packed. Raises :class:`~nybble.errors.NybbleError` as :func:`nybble.load` does."""
    accuracy, kv = Accuracy.parse(job.accuracy), KVType.parse(job.kv)
    threads = start_threads(job.threads).pool
    isa = leading_isa(isas_of(threads))
    if job.random is None:
        checkpoint, planned = plan_file(Path(job.model), accuracy, isa)
    else:
        checkpoint = random_checkpoint(job.random)
        planned = plan(build_graph(checkpoint), accuracy, isa)
    longest = max(case.context * case.batch for case in job.cases)
    fitting_context(planned.footprint, longest, longest, STEP_TOKENS, available_memory(), kv)
    return NybbleSubject(checkpoint, planned, threads, kv)


class NybbleSubject(SteppingSubject):
    """A packed model, planned for ``threads``, and one KV cache for each sequence."""

    def __init__(self, checkpoint: Checkpoint, planned: Plan, threads: _native.ThreadPool, kv: KVType) -> None:
        super().__init__(planned.graph.vocabulary)
        self.facts = _facts(checkpoint, planned, kv)
        self._isa = planned.isa
        self._cache_bytes = largest_cache(describe())
        self._shape = (planned.graph.layers, planned.graph.kv_heads, planned.graph.head_dim)
        self._kv = kv
        self._threads = threads
        compiled = compile_plan(planned, threads, checkpoint.release, isas=isas_of(threads))
        self._program = compiled.program
        read = dict.fromkeys(op.weights for op in planned.graph.ops if isinstance(op, Linear))
        self._matrices = [compiled.matrices[weights] for weights in read]
        self._caches: list[_native.KVCache] = []

    def start(self, sequences: int, capacity: int) -> None:
        """New KV caches."""
        self._caches.clear()
        self._caches += [_native.KVCache(*self._shape, capacity, self._kv.value) for _ in range(sequences)]

    def truncate(self, length: int) -> None:
        """Cut off the KV caches."""
        for cache in self._caches:
            cache.truncate(length)

    def prefill(self, sequence: int, tokens: Sequence[int]) -> None:
        """In steps as the engine takes them."""
        for begin in range(0, len(tokens), STEP_TOKENS):
            chunk = tokens[begin : begin + STEP_TOKENS]
            outputs = [len(chunk) - 1] if begin + STEP_TOKENS >= len(tokens) else []
            self._program.run(chunk, [(self._caches[sequence], len(chunk))], outputs)

    def decode(self, tokens: Sequence[int]) -> None:
        """One step for all sequences."""
        self._program.run(tokens, [(cache, 1) for cache in self._caches], range(len(tokens)))

    def time_ops(self, tokens: Sequence[int]) -> list[tuple[str, float]]:
        """Seconds of each op of a step of the first sequence, with logits of its last token."""
        return self._program.time_ops(tokens, [(self._caches[0], len(tokens))], [len(tokens) - 1])

    def ceilings(self) -> Mapping[str, float]:
        """The bandwidth of the memory that holds the weights of the linears, and the peaks of the instruction set."""
        bandwidth = _native.measure_weights_bandwidth(self._threads, self._matrices, self._cache_bytes, READ_SECONDS)
        int8_peak, fp32_peak = measure_peaks(self._threads, self._isa)
        return {"read_bandwidth": bandwidth, "int8_peak": int8_peak, "fp32_peak": fp32_peak}


def _facts(checkpoint: Checkpoint, planned: Plan, kv: KVType) -> dict[str, Any]:
    """``bits_per_weight`` are those of the packed matrices; ``model_type`` names the storage of most weights."""
    tensors = planned.graph.tensors.values()
    storages: Counter[str] = Counter()
    for tensor in tensors:
        storages[tensor.storage.name] += tensor.elements
    matrices = planned.matrices.values()
    return {
        "isa": planned.isa,
        "model_type": f"{checkpoint.architecture} {storages.most_common(1)[0][0]}",
        "model_bytes": sum(tensor.stored_bytes for tensor in tensors),
        "parameters": sum(tensor.elements for tensor in tensors),
        "bits_per_weight": 8
        * sum(matrix.bytes for matrix in matrices)
        / sum(matrix.n * matrix.k for matrix in matrices),
        "work": asdict(work_of(planned, kv)),
    }
