"""A conversation: its messages, and a sequence of its own so that earlier turns are not computed again."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Unpack

from .generation import TextStream
from .llm import DEFAULT_MAX_TOKENS, LLM, Message, SamplingParameters, opening


class Reply(Iterator[str]):
    """An answer within a conversation: iterate for pieces of text; ``stream`` has the details."""

    def __init__(self, stream: TextStream, conversation: tuple[Message, ...]) -> None:
        self.stream = stream
        self._conversation = conversation

    def __next__(self) -> str:
        return next(self.stream)

    def close(self) -> None:
        """End the answer here."""
        self.stream.close()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation with the answer as far as it has come; without the question, if nothing came of it."""
        finished = self.stream.finish_reason not in (None, "cancelled")
        if not (self.stream.text or finished):
            return self._conversation[:-1]
        return (*self._conversation, {"role": "assistant", "content": self.stream.text})


class Chat:
    """Turns of a user and the model, for one thread at a time. Made by :meth:`LLM.chat`."""

    def __init__(self, model: LLM, system: str | None = None) -> None:
        if system is not None:
            model.tokenize(system)  # refuses what is not text
        self._model = model
        self._session = model.new_session()
        self._opening = opening(system)
        # The last reply knows all that was said before it. That it is the only state makes interrupts harmless.
        self._reply: Reply | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far, a system message first if there is one, an unfinished answer last."""
        return self._opening if self._reply is None else self._reply.messages

    def send(
        self,
        text: str,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        **sampling: Unpack[SamplingParameters],
    ) -> Reply:
        """Say ``text`` and stream the answer. An earlier answer that is still under way ends where it is.

        The answer is part of the conversation as far as it comes, also when it is cut short. If it ends before its
        first piece, the conversation stays as it was.
        """
        conversation: tuple[Message, ...] = (*self.messages, {"role": "user", "content": text})
        ids = self._model.conversation(conversation)
        options = self._model.options(max_tokens, stop, sampling)
        reply = Reply(self._model.continue_ids(ids, self._session, options), conversation)
        self._end_reply()
        self._reply = reply
        return reply

    def reset(self) -> None:
        """Forget all turns but the system message."""
        self._end_reply()
        self._reply = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages as JSON, atomically: a list of {"role", "content"}. Raises OSError."""
        text = json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n"
        target = Path(path)
        partial = target.parent / f".{secrets.token_hex(8)}.partial"
        try:
            partial.write_text(text, "utf-8")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _end_reply(self) -> None:
        if self._reply is not None:
            self._reply.close()
