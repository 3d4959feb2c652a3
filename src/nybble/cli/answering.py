"""Answering one prompt: what ``nybble run`` does once its arguments are known."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidParameter
from .exit_codes import INTERRUPTED, SUCCESS
from .output import AnswerWriter, note, print_json, work_progress

if TYPE_CHECKING:
    from ..engine.generation import TextStream


def answer_prompt(
    prompt: str | None = None,
    model: str | None = None,
    *,
    max_tokens: int | None = None,
    stop: Sequence[str] | None = None,
    system: str | None = None,
    raw: bool = False,
    threads: int | None = None,
    context: int | None = None,
    accuracy: str = "int8",
    kv: str = "fp16",
    offline: bool = False,
    verbose: bool = False,
    as_json: bool = False,
    **sampling: Any,
) -> int:
    """Answer ``prompt`` on standard output, the parameters being those of ``nybble run``; returns the exit code.

    Raises :class:`~nybble.errors.NybbleError`.
    """
    parameters = answer_parameters(max_tokens, stop, **sampling)
    text = _prompt_text(prompt)
    if not text:
        raise InvalidParameter("the prompt is empty")
    from ..engine.loading import load
    from .report import answer_facts, setup_lines, timing_line

    with work_progress() as progress:
        loaded = load(
            model, threads=threads, context_length=context, accuracy=accuracy, kv=kv, offline=offline, progress=progress
        )
    answer = loaded.stream(text, raw=raw, system=system, **parameters)
    if verbose:
        for line in setup_lines(loaded, parameters):
            note(line)
    if as_json:
        interrupted = _write(answer, None)
        print_json(answer_facts(loaded, answer))
    else:
        interrupted = _write(answer, AnswerWriter())
        note(timing_line(loaded, answer))
    return INTERRUPTED if interrupted else SUCCESS


def answer_parameters(max_tokens: int | None, stop: Sequence[str] | None, **sampling: Any) -> dict[str, Any]:
    """The parameters of an answer that were given, checked before a model is fetched or loaded.

    Raises :class:`~nybble.errors.InvalidParameter`.
    """
    from ..engine.generation import GenerationOptions
    from ..engine.llm import DEFAULT_MAX_TOKENS
    from ..engine.sampling import SamplingOptions

    given = {name: value for name, value in sampling.items() if value is not None}
    longest = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    options = GenerationOptions(longest, tuple(stop or ()), SamplingOptions(**given))
    return {**given, "max_tokens": options.max_tokens, "stop": options.stop}


def _write(answer: TextStream, writer: AnswerWriter | None) -> bool:
    """Show the answer as it is made; returns whether Ctrl-C ended it."""
    try:
        for piece in answer:
            if writer is not None:
                writer.write(piece)
    except KeyboardInterrupt:
        answer.close()
        return True
    finally:
        if writer is not None:
            writer.end()
    return False


def _prompt_text(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise InvalidParameter('no prompt; give one, as in: nybble run "What is the capital of France?"')
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"standard input is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return text.removesuffix("\n")  # the shell's, not the writer's
