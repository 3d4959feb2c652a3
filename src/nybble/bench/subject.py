"""What is measured: an engine with a model loaded, and how samples of it are taken.

Standard library only: it also runs in the Pythons of other engines.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from .cases import Case
from .neighbours import NeighbourWatch

WARM_UP_TOKENS = 8
"""Tokens generated before the first sample of a case."""

Emit = Callable[[Mapping[str, Any]], None]


class Subject(Protocol):
    """An engine with a model loaded."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What to say about the engine and the model, as JSON."""

    def refusal(self, case: Case) -> str | None:
        """Why ``case`` cannot be measured, if so."""

    def prepare(self, case: Case) -> None:
        """Make everything ready for samples of ``case``, its depth included."""

    def sample(self, case: Case) -> float:
        """Seconds of one sample. May be called any number of times after :meth:`prepare`."""

    def ceilings(self) -> Mapping[str, float] | None:
        """What the machine can do right now, on the memory of the weights; None if that is unknown."""


class SteppingSubject(ABC):
    """An engine that computes given tokens step by step. Tokens are random: their values change no speed."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._random = random.Random(0)

    @abstractmethod
    def start(self, sequences: int, capacity: int) -> None:
        """Forget everything; ``sequences`` empty ones with room for ``capacity`` tokens each."""

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens of each sequence."""

    @abstractmethod
    def prefill(self, sequence: int, tokens: Sequence[int]) -> None:
        """Append ``tokens`` to a sequence and compute the logits of the last."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> None:
        """Append a token to each sequence and compute its logits, all in one step."""

    def refusal(self, case: Case) -> str | None:
        """Nothing is refused."""
        return None

    def ceilings(self) -> Mapping[str, float] | None:
        """Not known."""
        return None

    def prepare(self, case: Case) -> None:
        """Compute the tokens of the depth."""
        self.start(case.batch, case.context)
        for sequence in range(case.batch if case.depth else 0):
            self.prefill(sequence, self._tokens(case.depth))

    def sample(self, case: Case) -> float:
        """The clock runs from the first step to the last logits."""
        self.truncate(case.depth)
        prompt = self._tokens(case.prompt)
        steps = [self._tokens(case.batch) for _ in range(case.generated)]
        start = time.perf_counter()
        if prompt:
            self.prefill(0, prompt)
        for tokens in steps:
            self.decode(tokens)
        return time.perf_counter() - start

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocabulary) for _ in range(count)]


def take_samples(subject: Subject, cases: Sequence[Case], repeats: int, emit: Emit) -> None:
    """Warm up, then take ``repeats`` samples of each case, with the ceilings measured just before and after.

    ``emit`` gets a ``sample`` event for each as it is taken, and for each case a ``measured`` event with their seconds,
    whether others were busy during each, and the ceilings; or a ``skipped`` event with the reason.
    """
    before = subject.ceilings()
    for index, case in enumerate(cases):
        if why := subject.refusal(case):
            emit({"event": "skipped", "case": index, "why": why})
            continue
        subject.prepare(case)
        subject.sample(Case(case.prompt, min(case.generated, WARM_UP_TOKENS), case.depth, case.batch))
        seconds, busy = [], []
        whole = NeighbourWatch()
        for _ in range(repeats):
            watch = NeighbourWatch()
            seconds.append(subject.sample(case))
            busy.append(watch.is_busy(seconds[-1], watch.others_seconds()))
            emit({"event": "sample", "case": index})
        # What short samples cannot tell, all of them together can.
        if not any(busy) and whole.is_busy(sum(seconds), whole.others_seconds()):
            busy = [True] * repeats
        after = subject.ceilings()
        ceilings = [before, after] if before and after else []
        emit({"event": "measured", "case": index, "seconds": seconds, "busy": busy, "ceilings": ceilings})
        before = after
