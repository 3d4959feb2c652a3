"""Producing text: the loop of sampling and decoding, and what it measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..errors import InvalidParameter
from ..tokenizer.decode_stream import DecodeStream
from ..tokenizer.stop_strings import StopStrings
from ..tokenizer.tokenizer import Tokenizer
from .greedy import GreedySampler
from .sampling import SamplingOptions

if TYPE_CHECKING:
    from .sampler import Sampler
    from .session import Session

FinishReason = Literal["end", "stop", "length", "context", "cancelled"]
"""Why an answer ended: the model's end token, a stop string, ``max_tokens``, a full context, or the caller."""


@dataclass(slots=True)
class Timings:
    """What one answer took. Times in seconds; ``first_token`` is from the request to the first token."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    prefill: float = 0.0
    first_token: float = 0.0
    decode: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens computed per second (reused ones not counted); 0 if nothing was measured."""
        return (self.prompt_tokens - self.reused_tokens) / self.prefill if self.prefill else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first; 0 if there was no second."""
        return (self.generated_tokens - 1) / self.decode if self.decode and self.generated_tokens > 1 else 0.0


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """What to generate: at most ``max_tokens`` tokens, ended early by any of ``stop``, chosen by ``sampling``."""

    max_tokens: int
    stop: tuple[str, ...]
    sampling: SamplingOptions

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise InvalidParameter(f"max_tokens is {self.max_tokens!r}; it must be a whole number of at least 1")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise InvalidParameter(
                f"stop is {list(self.stop)!r}; each stop string must be a text of at least 1 character"
            )


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished answer: ``text``, token ``ids`` (end token included), ``finish_reason`` and ``timings``."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings


Borrow = Callable[[], "AbstractContextManager[Session]"]
"""Gives a session that nobody else uses until the block it opens ends."""


@dataclass(slots=True, eq=False)
class TextStream(Iterator[str]):
    """An answer as it is made: iterate for pieces of text, none of them ending inside a character.

    ``text``, ``ids``, ``finish_reason`` (None while it runs) and ``timings`` are up to date after each piece. Closing
    it, or an interrupt, ends the work at once and leaves what was said so far. It answers the ids in ``prompt`` as
    ``options`` say, written by ``tokenizer``; ``borrow`` gives the session to work in from the first piece to the last.
    ``continues_text`` says that the answer goes on in the middle of the prompt's text, so that a leading space belongs
    to it.
    """

    borrow: Borrow = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    prompt: Sequence[int] = field(repr=False)
    options: GenerationOptions
    continues_text: bool = False
    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    timings: Timings = field(default_factory=Timings)
    _pieces: Iterator[str] | None = field(default=None, repr=False)

    def __next__(self) -> str:
        if self._pieces is None:
            self._pieces = self._generate()
        try:
            return next(self._pieces)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the answer here."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
        self._pieces = iter(())  # dropping the generator ends it, and with it the use of the session

    def finish(self) -> Generation:
        """Run to the end and return the whole answer."""
        for _ in self:
            pass
        return Generation(self.text, tuple(self.ids), self.finish_reason or "cancelled", self.timings)

    def _generate(self) -> Iterator[str]:
        with self.borrow() as session:
            for piece in self._pieces_of(session):
                # Before it is shown: an interrupt must not leave a text on the screen that the conversation lacks.
                self.text += piece
                yield piece

    def _pieces_of(self, session: Session) -> Iterator[str]:
        start = time.perf_counter()
        sampler = _sampler(self.options.sampling)
        decoder = DecodeStream(self.tokenizer, after_text=self.continues_text)
        stops = StopStrings(self.options.stop)
        timings = self.timings
        timings.prompt_tokens = len(self.prompt)
        logits, timings.reused_tokens = session.prefill(self.prompt)
        timings.prefill = time.perf_counter() - start
        history = list(self.prompt)
        while True:
            token = sampler.sample(logits, history)
            history.append(token)
            self.ids.append(token)
            now = time.perf_counter()
            timings.generated_tokens += 1
            if timings.generated_tokens == 1:
                first = now
                timings.first_token = now - start
            timings.decode = now - first
            ended = token in self.tokenizer.end_tokens
            piece, stopped = stops.push("" if ended else decoder.push(token))
            if stopped:
                self.finish_reason = "stop"
            if piece:
                yield piece
            if stopped:
                return
            if ended:
                self.finish_reason = "end"
            elif timings.generated_tokens == self.options.max_tokens:
                self.finish_reason = "length"
            elif session.is_full:
                self.finish_reason = "context"
            if self.finish_reason is not None:
                break
            logits = session.decode(token)
        rest, stopped = stops.push(decoder.finish())
        if stopped:
            self.finish_reason = "stop"
        rest += stops.finish()
        if rest:
            yield rest


def _sampler(options: SamplingOptions) -> GreedySampler | Sampler:
    if options.is_greedy:
        return GreedySampler()
    from .sampler import Sampler

    return Sampler(options)
