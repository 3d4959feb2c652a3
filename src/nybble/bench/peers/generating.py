"""Engines that choose the tokens they generate, so that only whole answers can be timed."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ..cases import Case

SMALLEST_VOCABULARY = 30000
"""Ids below this are tokens of all models that are measured; for engines that do not tell how many there are."""


class GeneratingSubject(ABC):
    """One sequence, always computed from its first token. What depth there is becomes the prompt of an answer."""

    def __init__(self, facts: Mapping[str, Any], vocabulary: int = SMALLEST_VOCABULARY) -> None:
        self.facts = facts
        self._vocabulary = vocabulary
        self._random = random.Random(0)

    @abstractmethod
    def answer(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
        """Seconds for ``prompt``, and for generating that many tokens after it, each computed by the model."""

    def refusal(self, case: Case) -> str | None:
        """One sequence from its start, and nothing else."""
        if case.batch > 1:
            return "it is measured with one sequence only"
        if case.prompt and case.depth:
            return "it computes a prompt together with what lies before it"
        return None

    def prepare(self, case: Case) -> None:
        """The same tokens again: nothing else stays from one sample to the next."""
        self._random.seed(0)

    def sample(self, case: Case) -> float:
        """An answer without a prompt of its own begins behind one token at least."""
        prompt = [self._random.randrange(self._vocabulary) for _ in range(case.prompt or max(1, case.depth))]
        of_prompt, of_generation = self.answer(prompt, case.generated)
        return (of_prompt if case.prompt else 0.0) + (of_generation if case.generated else 0.0)

    def ceilings(self) -> None:
        """Not known."""
        return None
