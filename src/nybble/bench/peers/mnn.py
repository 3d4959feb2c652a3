"""MNN's language models, with a configuration that its exporter made."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence

from ..job import Job
from .generating import GeneratingSubject


def load(job: Job) -> MNN:
    """The model of ``job``: the config.json of an exported model."""
    return MNN(job.model, job.threads)


class MNN(GeneratingSubject):
    """A model on the CPU; low precision and memory, as MNN's own benchmark has them."""

    def __init__(self, path: str, threads: int) -> None:
        super().__init__({"version": f"MNN {importlib.import_module('MNN').version()}"})
        self._model = importlib.import_module("MNN.llm").create(path)
        self._model.set_config({"thread_num": threads, "reuse_kv": False, "precision": "low", "memory": "low"})
        self._model.load()

    def answer(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
        """Forward passes with given tokens: what it would generate is of no interest."""
        self._model.reset()
        start = time.perf_counter()
        self._model.forward(list(prompt)).read()
        computed = time.perf_counter()
        for index in range(generated):
            self._model.forward([prompt[index % len(prompt)]]).read()
        return computed - start, time.perf_counter() - computed
