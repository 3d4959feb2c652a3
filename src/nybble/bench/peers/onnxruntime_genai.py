"""ONNX Runtime GenAI, with a folder that its model builder made."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..job import Job
from .generating import GeneratingSubject


def load(job: Job) -> OnnxRuntimeGenAI:
    """The model of ``job``: a folder with a genai_config.json."""
    return OnnxRuntimeGenAI(Path(job.model), job.threads)


class OnnxRuntimeGenAI(GeneratingSubject):
    """A model on the CPU with the defaults of its folder but for the number of threads."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._library = importlib.import_module("onnxruntime_genai")
        self._numpy: Any = importlib.import_module("numpy")
        vocabulary = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]["vocab_size"]
        super().__init__({"version": f"onnxruntime-genai {self._library.__version__}"}, vocabulary)
        configuration = self._library.Config(str(folder))
        session = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        configuration.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = self._library.Model(configuration)

    def answer(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
        """The first token is chosen from the logits of the prompt; each further one takes a step of the model."""
        length = len(prompt) + generated + 1
        parameters = self._library.GeneratorParams(self._model)
        parameters.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=1)
        generator = self._library.Generator(self._model, parameters)
        ids = self._numpy.array(prompt, dtype=self._numpy.int32)
        start = time.perf_counter()
        generator.append_tokens(ids)
        computed = time.perf_counter()
        if not generated:
            return computed - start, 0.0
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(generated):
            generator.generate_next_token()
        return computed - start, time.perf_counter() - first
