"""A conversation: its messages, and a sequence of its own so that earlier turns are not computed again."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Unpack

from .generation import TextStream
from .llm import DEFAULT_MAX_TOKENS, LLM, Message, SamplingParameters, opening


class Reply(Iterator[str]):
    """An answer within a conversation: iterate for pieces of text; ``stream`` has the details."""

    def __init__(self, stream: TextStream, messages: list[Message], commit: Callable[[list[Message]], None]) -> None:
        self.stream = stream
        self._messages = messages
        self._commit = commit

    def __next__(self) -> str:
        try:
            return next(self.stream)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the answer here; what was said so far becomes part of the conversation."""
        self.stream.close()
        if self.stream.ids:
            self._commit([*self._messages, {"role": "assistant", "content": self.stream.text}])


class Chat:
    """Turns of a user and the model. Made by :meth:`LLM.chat`."""

    def __init__(self, model: LLM, system: str | None = None) -> None:
        self._model = model
        self._session = model.new_session()
        self._opening = opening(system)
        self._messages = list(self._opening)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far, a system message first if there is one."""
        return tuple(self._messages)

    def send(
        self,
        text: str,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        **sampling: Unpack[SamplingParameters],
    ) -> Reply:
        """Say ``text`` and stream the answer.

        The answer joins the conversation when it ends, also when it is cut short. If it fails before its first piece,
        the conversation stays as it was.
        """
        messages: list[Message] = [*self._messages, {"role": "user", "content": text}]
        ids = self._model.conversation(messages)
        options = self._model.options(max_tokens, stop, sampling)
        return Reply(self._model.continue_ids(ids, self._session, options), messages, self._commit)

    def reset(self) -> None:
        """Forget all turns but the system message."""
        self._messages = list(self._opening)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages as JSON, atomically: a list of {"role", "content"}. Raises OSError."""
        target = Path(path)
        text = json.dumps(self._messages, ensure_ascii=False, indent=2) + "\n"
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            try:
                file.write(text)
                file.close()
                Path(file.name).replace(target)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    def _commit(self, messages: list[Message]) -> None:
        self._messages = messages
