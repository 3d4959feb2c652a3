"""One linear on its own as a subject, with a kernel chosen by name."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from .. import _native
from ..engine.loading import start_threads
from ..graph.dispatch import LinearKernel, linear_kernels, nearest_isas
from ..machine.description import describe
from .cases import Case
from .ceilings import READ_SECONDS, largest_cache, measure_peaks
from .job import Job, Operation
from .random_model import random_rows, storage_of
from .work import NO_WORK, LinearWork, Work

MOST_COPIES = 1000
"""Of small weights; so many are used in turn that each is in no cache any more when it is used again."""

_TABLE_ROWS = 32
"""Different rows of activations."""

_ALIGNMENT = 4096


def kernels_for(operation: Operation, isas: Collection[str]) -> list[LinearKernel]:
    """The registered kernels that read its weights on one of ``isas``.

    Raises :class:`InvalidParameter` for weights that do not exist.
    """
    storage = storage_of(operation.weights).name
    weights = storage.lower() if operation.weights.bits == 16 else f"w{operation.weights.bits}"
    return [
        kernel
        for kernel in linear_kernels()
        if kernel.weights == weights and kernel.isa in isas and _native.can_pack(storage, kernel.layout)
    ]


def load(job: Job) -> LinearSubject:
    """The operation of ``job`` with the kernel it names as its engine."""
    assert job.operation is not None
    (kernel,) = (kernel for kernel in linear_kernels() if kernel.name == job.engine)
    return LinearSubject(job.operation, kernel, job.threads)


class LinearSubject:
    """Several copies of the packed weights, and a program that multiplies by as many of them as wanted.

    A case is a number of rows (its prompt). Rounding the activations to int8, where the kernel wants that, is part of
    a sample: once for each use of the weights.
    """

    def __init__(self, operation: Operation, kernel: LinearKernel, threads: int) -> None:
        self._operation, self._kernel = operation, kernel
        self._threads = start_threads(threads).pool
        self._cache_bytes = largest_cache(describe())
        storage, generator = storage_of(operation.weights), np.random.default_rng(0)
        size = _native.packed_bytes(storage.name, operation.n, operation.k, layout=kernel.layout)
        stride = -(-size // _ALIGNMENT) * _ALIGNMENT
        copies = min(max(1, 4 * self._cache_bytes // size), MOST_COPIES)
        memory = _native.WeightMemory(stride * copies)
        rows = random_rows(storage, operation.n, operation.k, generator)
        parts = [(storage.name, [rows])]
        self._matrices = [
            _native.pack(memory, copy * stride, parts, operation.k, self._threads, layout=kernel.layout)[0]
            for copy in range(copies)
        ]
        activations = generator.standard_normal((_TABLE_ROWS, operation.k), np.float32)
        table = _native.WeightMemory(_native.packed_bytes("F32", _TABLE_ROWS, operation.k))
        self._table, _ = _native.pack(table, 0, [("F32", [activations.view(np.uint8)])], operation.k, self._threads)
        products = operation.n * operation.k
        int8_products = products if kernel.activations == "int8" else 0
        work = Work(LinearWork(size, int8_products, products - int8_products), NO_WORK, 0.0, 1 << 30)
        self.facts: Mapping[str, Any] = {
            "isa": kernel.isa,
            "model_type": f"{kernel.weights} × {kernel.activations}",
            "model_bytes": rows.nbytes,
            "parameters": products,
            "bits_per_weight": 8 * size / products,
            "work": asdict(work),
        }

    def refusal(self, case: Case) -> str | None:
        """Nothing is refused."""
        return None

    def prepare(self, case: Case) -> None:
        """A program for so many rows. Many rows use each weight often: then fewer copies will do."""
        copies = max(1, len(self._matrices) * 8 // max(8, case.prompt))
        self._program = self._build(copies)
        self._cache = _native.KVCache(0, 1, 2, case.prompt)

    def sample(self, case: Case) -> float:
        """The mean over all copies of the weights."""
        self._cache.truncate(0)
        tokens = [row % _TABLE_ROWS for row in range(case.prompt)]
        times = self._program.time_ops(tokens, [(self._cache, case.prompt)], [0])
        rounding = sum(seconds for label, seconds in times if label == "quantise")
        return rounding + statistics.fmean(seconds for label, seconds in times if label == "linear")

    def ceilings(self) -> Mapping[str, float]:
        """The bandwidth of the memory that holds all copies, and the peaks of the kernel's instruction set."""
        bandwidth = _native.measure_weights_bandwidth(self._threads, self._matrices, self._cache_bytes, READ_SECONDS)
        int8_peak, fp32_peak = measure_peaks(self._threads, self._kernel.isa)
        return {"read_bandwidth": bandwidth, "int8_peak": int8_peak, "fp32_peak": fp32_peak}

    def _build(self, copies: int) -> _native.Program:
        operation, kernel = self._operation, self._kernel
        isas = nearest_isas(self._threads, kernel.isa)
        program = _native.Program(self._threads, isas, _TABLE_ROWS, 0, 1, 2, [0.0])
        given = program.view(program.slot(operation.k, False, 0), 0, operation.k)
        program.embed("embed", self._table, given)
        if kernel.activations == "int8":
            slot = program.slot(operation.k, False, operation.weights.block, kernel.layout)
            rounded = program.view(slot, 0, operation.k)
            program.quantise("quantise", given, rounded)
            given = rounded
        slot = program.slot(operation.n, False, 0)
        output = program.view(slot, 0, operation.n)
        for matrix in self._matrices[:copies]:
            program.linear("linear", given, matrix, kernel.name, output, None, None)
        # A program needs logits: one feature is enough.
        logits = program.view(program.slot(1, True, 0), 0, 1)
        program.select_outputs("logits", program.view(slot, 0, 1), logits)
        program.set_logits(logits)
        return program
