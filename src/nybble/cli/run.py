"""``nybble run``: answer one prompt."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options
from .answering import answer_prompt

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
    kv: options.KV = "fp16",
    offline: options.Offline = False,
    verbose: options.Verbose = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when the answer is complete.")] = False,
) -> None:
    """Answer one prompt.

    The answer streams to standard output; one line on how long it took goes to standard error. Sampling is what the
    model's file recommends, else greedy. A model that is not on this machine is fetched first.
    """
    raise typer.Exit(
        answer_prompt(
            prompt,
            model,
            max_tokens=max_tokens,
            stop=stop,
            system=system,
            raw=raw,
            threads=threads,
            context=context,
            accuracy=accuracy,
            kv=kv,
            offline=offline,
            verbose=verbose,
            as_json=as_json,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
    )
