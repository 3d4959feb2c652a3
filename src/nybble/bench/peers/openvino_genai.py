"""OpenVINO GenAI, by its LLMPipeline and the times that measures itself. Reads GGUF files of some architectures."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ..job import Job
from .generating import GeneratingSubject


def load(job: Job) -> OpenVINOGenAI:
    """The model of ``job``: a GGUF file, or a folder of OpenVINO's own format."""
    return OpenVINOGenAI(job.model, job.threads)


class OpenVINOGenAI(GeneratingSubject):
    """A pipeline on the CPU with OpenVINO's defaults."""

    def __init__(self, path: str, threads: int) -> None:
        self._library = importlib.import_module("openvino_genai")
        self._openvino = importlib.import_module("openvino")
        self._numpy: Any = importlib.import_module("numpy")
        super().__init__({"version": f"openvino-genai {self._library.__version__}"})
        self._pipeline = self._library.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)

    def answer(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
        """Time to the first token, and the mean time of each other one."""
        ids = self._numpy.array([prompt], dtype=self._numpy.int64)
        mask = self._numpy.ones_like(ids)
        inputs = self._library.TokenizedInputs(self._openvino.Tensor(ids), self._openvino.Tensor(mask))
        configuration = self._library.GenerationConfig()
        # The first comes with the prompt.
        configuration.max_new_tokens = configuration.min_new_tokens = generated + 1
        configuration.ignore_eos = True
        configuration.do_sample = False
        metrics = self._pipeline.generate(inputs, configuration).perf_metrics
        each = metrics.get_tpot().mean if generated else 0.0
        return metrics.get_ttft().mean / 1e3, generated * each / 1e3
