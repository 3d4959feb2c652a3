"""``nybble chat``: a conversation."""

from __future__ import annotations

import typer

from . import options
from .answering import answer_parameters
from .conversation import Conversation
from .exit_codes import FAILURE
from .line_reader import LineReader
from .output import note, work_progress
from .report import setup_lines

EXAMPLES = (
    "nybble chat",
    'nybble chat --system "You are a patient teacher." --temperature 0.7',
    "nybble chat --model models/tiny.gguf < questions.txt",
)


def chat(
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
    threads: options.Threads = None,
    context: options.Context = None,
    accuracy: options.Accuracy = "int8",
    kv: options.KV = "fp16",
    offline: options.Offline = False,
    verbose: options.Verbose = False,
) -> None:
    """Talk with a model.

    Each line is a turn; /help lists the commands. Ctrl-C stops an answer, at the prompt it leaves, as Ctrl-D does.
    Lines may also be piped in: answers go to standard output, remarks to standard error.
    """
    parameters = answer_parameters(
        max_tokens,
        stop,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    from ..engine.loading import load

    with work_progress() as progress:
        loaded = load(
            model, threads=threads, context_length=context, accuracy=accuracy, kv=kv, offline=offline, progress=progress
        )
    lines = LineReader()
    conversation = Conversation(loaded, system, parameters)
    if verbose:
        for setup in setup_lines(loaded, parameters):
            note(setup)
    if lines.interactive:
        note(f"{loaded.info.path.stem}, {loaded.context_length} tokens of context. /help lists the commands.")
    while (line := lines.read()) is not None:
        if not conversation.take(line):
            break
    if conversation.failures and not lines.interactive:
        raise typer.Exit(FAILURE)
