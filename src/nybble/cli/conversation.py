"""What a line of a chat does: a turn of the conversation, or a command about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ContextOverflow, NybbleError
from .output import AnswerWriter, note, print_error
from .report import ending_line, rate

if TYPE_CHECKING:
    from ..engine.generation import TextStream
    from ..engine.llm import LLM

_HELP = """\
/reset      forget the conversation, but not the system message
/save PATH  write the conversation to a JSON file
/exit       leave, as Ctrl-D does
/help       show this
Ctrl-C stops an answer. A line that begins with a space is never a command."""


class Conversation:
    """A chat with ``model``; ``parameters`` are those of every answer. ``failures`` counts lines that came to nothing.

    Raises :class:`~nybble.errors.TemplateError` if the model cannot chat.
    """

    def __init__(self, model: LLM, system: str | None, parameters: dict[str, Any]) -> None:
        self._model = model
        self._chat = model.chat(system)
        self._parameters = parameters
        self.failures = 0

    def take(self, line: str) -> bool:
        """Do what ``line`` says; False if it says to leave. A failure is told, and the conversation goes on."""
        try:
            if line.startswith("/"):
                return self._obey(line)
            if line.strip():
                self._answer(line)
        except ContextOverflow as error:
            self._fail(f"{error}; /reset begins a new conversation")
        except NybbleError as error:
            self._fail(str(error))
        except KeyboardInterrupt:
            note("interrupted before the answer began")
        return True

    def _fail(self, problem: str) -> None:
        self.failures += 1
        print_error(problem)

    def _answer(self, text: str) -> None:
        reply = self._chat.send(text, **self._parameters)
        writer = AnswerWriter()
        try:
            for piece in reply:
                writer.write(piece)
        except KeyboardInterrupt:
            reply.close()
        finally:
            writer.end()
        note(_turn_line(self._model, reply.stream))

    def _obey(self, line: str) -> bool:
        command, _, argument = line.partition(" ")
        match command:
            case "/help":
                for help_line in _HELP.splitlines():
                    note(help_line)
            case "/reset":
                self._chat.reset()
                note("the conversation is empty")
            case "/save":
                self._save(argument.strip())
            case "/exit":
                return False
            case _:
                self._fail(f"{command} is not a command; /help lists them")
        return True

    def _save(self, name: str) -> None:
        if not name:
            self._fail("/save needs the path of a file")
            return
        path = Path(name).expanduser()
        try:
            self._chat.save(path)
        except OSError as error:
            self._fail(f"cannot write {path}: {error.strerror}")
        else:
            note(f"saved {len(self._chat.messages)} messages to {path}")


def _turn_line(model: LLM, answer: TextStream) -> str:
    """What a turn computed, and what it did not have to."""
    timings = answer.timings
    computed = timings.prompt_tokens - timings.reused_tokens
    parts = [f"reused {timings.reused_tokens} of {timings.prompt_tokens} prompt tokens, computed {computed}"]
    parts.append(f"generated {timings.generated_tokens}")
    if timings.decode_rate:
        parts.append(rate(timings.decode_rate))
    if ending := ending_line(model, answer):
        parts.append(ending)
    return ", ".join(parts)
