"""``nybble run``: answer one prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidParameter
from . import options
from .exit_codes import INTERRUPTED
from .output import AnswerWriter, note, print_json, work_progress
from .report import answer_facts, setup_lines, timing_line

if TYPE_CHECKING:
    from ..engine.generation import TextStream

EXAMPLES = (
    'nybble run "What is the capital of France?"',
    'nybble run --model org/repo:Q4_K_M --temperature 0.7 --seed 1 "Tell me a story."',
    'cat letter.txt | nybble run --system "Summarise in one sentence."',
    'nybble run --raw --max-tokens 20 --json "Once upon a time"',
)


def run(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The question; `-` or nothing: read it from standard input.")
    ] = None,
    model: options.Model = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    system: options.System = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as plain text, without a template.")] = False,
    threads: options.Threads = None,
    context: options.Context = None,
    accuracy: options.Accuracy = "int8",
    offline: options.Offline = False,
    verbose: options.Verbose = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when the answer is complete.")] = False,
) -> None:
    """Answer one prompt.

    The answer streams to standard output; one line on how long it took goes to standard error. Sampling is what the
    model's file recommends, else greedy. A model that is not on this machine is fetched first.
    """
    parameters = options.answer_parameters(
        max_tokens,
        stop,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    text = _prompt_text(prompt)
    if not text:
        raise InvalidParameter("the prompt is empty")
    from ..engine.loading import load

    with work_progress() as progress:
        loaded = load(
            model, threads=threads, context_length=context, accuracy=accuracy, offline=offline, progress=progress
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
    if interrupted:
        raise typer.Exit(INTERRUPTED)


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
