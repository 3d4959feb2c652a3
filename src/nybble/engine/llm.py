"""A loaded model: what ``nybble.load`` returns."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from ..errors import InvalidParameter, TemplateError
from ..graph.dispatch import Accuracy
from ..graph.kv_type import KVType
from ..tokenizer.chat_template import ChatTemplate, TemplateSource, conversation_ids
from ..tokenizer.tokenizer import Tokenizer
from .generation import Borrow, Generation, GenerationOptions, TextStream
from .memory import MemoryNeeded
from .sampling import SamplingOptions
from .session import Runner, Session, SessionPool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .chat import Chat

DEFAULT_MAX_TOKENS = 512

Message = Mapping[str, str]
"""A turn of a conversation: ``role`` (system, user or assistant) and ``content``."""


class SamplingParameters(TypedDict, total=False):
    """Keyword arguments that override the model's own :class:`SamplingOptions`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Where a model came from and how it was loaded. ``load_seconds`` are those from the file to the loaded model."""

    path: Path
    architecture: str
    isa: str
    accuracy: Accuracy
    kv: KVType
    threads: int
    memory: MemoryNeeded
    load_seconds: float
    sampling_origins: Mapping[str, str]


class LLM:
    """A model ready to run. Made by :func:`nybble.load`.

    ``context_length`` is the most tokens a sequence may have, ``default_sampling`` what the model's author recommends,
    or greedy. Several threads may use a model, and several answers may be under way: each has a KV cache of its own,
    and their steps take turns. A ``template`` is compiled when it is needed: plain text can be continued with a broken
    one.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        template: TemplateSource | None,
        context_length: int,
        default_sampling: SamplingOptions,
        info: ModelInfo,
    ) -> None:
        self._runner = runner
        self._template = template
        self._compiled_template: ChatTemplate | None = None
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.default_sampling = default_sampling
        self.info = info
        self._sessions = SessionPool(self.new_session)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model says how a conversation is written."""
        return self._template is not None

    @property
    def vocabulary(self) -> int:
        """Number of token ids, and of logits per token."""
        return self._runner.vocabulary

    def tokenize(self, text: str) -> list[int]:
        """Token ids of ``text``, with a beginning-of-sequence token if the model wants one.

        Control tokens spelled in ``text`` stay plain text.
        """
        return self.tokenizer.encode(text, add_bos=True)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; control tokens are left out."""
        return self.tokenizer.decode(self._checked_ids(ids))

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each token of ``ids``: fp32 (len(ids), vocabulary).

        Raises :class:`~nybble.errors.InvalidParameter` for no ids or an id outside the vocabulary, and
        :class:`~nybble.errors.ContextOverflow` for more than the context holds.
        """
        checked = self._checked_ids(ids)
        with self._sessions.borrowed() as session:
            return session.all_logits(checked)

    def stream(
        self,
        prompt: str,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        raw: bool = False,
        system: str | None = None,
        stop: Sequence[str] = (),
        **sampling: Unpack[SamplingParameters],
    ) -> TextStream:
        """Answer ``prompt`` piece by piece.

        The prompt is one user message in the model's chat template, after the ``system`` message if there is one;
        ``raw`` (or a model without a template) continues it as plain text. Sampling parameters not given are the
        model's own.
        """
        if system is not None and raw:
            raise InvalidParameter("a system message needs the chat template, which raw leaves out; give one of them")
        options = self.options(max_tokens, stop, sampling)
        if raw or (self._template is None and system is None):
            return self.continue_ids(self.tokenize(prompt), None, options, continues_text=bool(prompt))
        ids = self.conversation([*opening(system), {"role": "user", "content": prompt}])
        return self.continue_ids(ids, None, options)

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        raw: bool = False,
        system: str | None = None,
        stop: Sequence[str] = (),
        **sampling: Unpack[SamplingParameters],
    ) -> Generation:
        """Like :meth:`stream`, but returns the whole answer."""
        return self.stream(prompt, max_tokens=max_tokens, raw=raw, system=system, stop=stop, **sampling).finish()

    def chat(self, system: str | None = None) -> Chat:
        """A new conversation, with an optional system message.

        Raises :class:`~nybble.errors.TemplateError` if the model has no chat template.
        """
        from .chat import Chat

        self._chat_template()
        return Chat(self, system)

    def conversation(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation in the model's chat template, ready for the assistant's next turn.

        Raises :class:`~nybble.errors.TemplateError` if there is none or it refuses the conversation.
        """
        return conversation_ids(self.tokenizer, self._chat_template(), messages)

    def new_session(self) -> Session:
        """A sequence of its own, with its own KV cache. One thread at a time may use it."""
        return Session(self._runner, self.context_length)

    def options(self, max_tokens: int, stop: Sequence[str], sampling: SamplingParameters) -> GenerationOptions:
        """Options with the model's own sampling where ``sampling`` says nothing."""
        unknown = set(sampling) - {field.name for field in fields(SamplingOptions)}
        if unknown:
            known = ", ".join(field.name for field in fields(SamplingOptions))
            raise InvalidParameter(f"unknown parameter {min(unknown)!r}; sampling parameters are {known}")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        return GenerationOptions(max_tokens, stops, replace(self.default_sampling, **sampling))

    def continue_ids(
        self, ids: Sequence[int], session: Session | None, options: GenerationOptions, *, continues_text: bool = False
    ) -> TextStream:
        """Continue ``ids`` in ``session``, or in one that is free, reusing what it has of them.

        A session given must not be used for anything else before the stream has ended. See :class:`TextStream` for the
        last parameter. Raises :class:`~nybble.errors.InvalidParameter` for no ids or an id outside the vocabulary.
        """
        checked = tuple(self._checked_ids(ids))
        if not checked:
            raise InvalidParameter("the prompt is empty: there is nothing to continue")
        borrow = self._sessions.borrowed if session is None else _always(session)
        return TextStream(borrow, self.tokenizer, checked, options, continues_text)

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            raise TemplateError(f"{self.info.path}: the model has no chat template, so it can only continue plain text")
        if self._compiled_template is None:
            self._compiled_template = self._template.compile()
        return self._compiled_template

    def _checked_ids(self, ids: Sequence[int]) -> list[int]:
        checked: list[int] = []
        for token in ids:
            try:
                checked.append(operator.index(token))
            except TypeError:
                raise InvalidParameter(f"token id {token!r} is not a whole number") from None
            if not 0 <= checked[-1] < self.vocabulary:
                raise InvalidParameter(f"token id {token} is not one of 0..{self.vocabulary - 1}")
        return checked


def _always(session: Session) -> Borrow:
    return lambda: nullcontext(session)


def opening(system: str | None) -> tuple[Message, ...]:
    """The messages before the first turn: the system message, if there is one."""
    return () if system is None else ({"role": "system", "content": system},)
