"""CTranslate2, with a folder that its converter made."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from ...errors import BenchmarkFailed
from ..job import Job
from .generating import GeneratingSubject


def load(job: Job) -> CTranslate2:
    """The model of ``job``: a folder with a vocabulary."""
    return CTranslate2(Path(job.model), job.threads)


class CTranslate2(GeneratingSubject):
    """A generator on the CPU that computes as the model was converted."""

    def __init__(self, folder: Path, threads: int) -> None:
        library = importlib.import_module("ctranslate2")
        vocabulary = next(folder.glob("vocabulary.json"), None)
        if vocabulary is None:
            raise BenchmarkFailed(f"{folder} has no vocabulary.json; expected a folder that CTranslate2 converted")
        self._names: list[str] = json.loads(vocabulary.read_text(encoding="utf-8"))
        super().__init__({"version": f"ctranslate2 {library.__version__}"}, len(self._names))
        self._generator = library.Generator(str(folder), device="cpu", intra_threads=threads, inter_threads=1)

    def answer(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
        """The first token comes with the prompt; a longer answer takes that much longer."""
        of_prompt = self._seconds(prompt, 1)
        return of_prompt, self._seconds(prompt, generated + 1) - of_prompt if generated else 0.0

    def _seconds(self, prompt: Sequence[int], length: int) -> float:
        names = [self._names[token] for token in prompt]
        start = time.perf_counter()
        # No token ends the answer; greedy.
        self._generator.generate_batch(
            [names], max_length=length, min_length=length, include_prompt_in_result=False, end_token=[]
        )
        return time.perf_counter() - start
