"""The options of ``nybble bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..bench.peers import PEERS
from ..bench.shapes import SHAPES

Prompts = Annotated[
    str, typer.Option("--prompt", "-p", metavar="TOKENS,...", help="Prompts to compute at once: rows pp512. 0: none.")
]
Generated = Annotated[
    str, typer.Option("--generate", "-n", metavar="TOKENS,...", help="Tokens to generate: rows tg128. 0: none.")
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--prompt-generate", "-pg", metavar="P+N,...", help="A prompt and tokens after it: rows pg512+128."),
]
Repeats = Annotated[int, typer.Option("--repeats", "-r", min=1, metavar="COUNT", help="Samples in each process.")]
Threads = Annotated[
    str | None,
    typer.Option("--threads", "-t", metavar="COUNT,...", help="If missing: one for each CPU this process may use."),
]
Processes = Annotated[int, typer.Option(min=1, metavar="COUNT", help="Fresh processes that measure everything again.")]
Depths = Annotated[
    str, typer.Option("--depth", "-d", metavar="TOKENS,...", help="Tokens that lie before those measured.")
]
Batches = Annotated[
    str, typer.Option("--batch", "-b", metavar="COUNT,...", help="Sequences that generate together, a token each.")
]
Format = Annotated[str, typer.Option("--format", "-o", metavar="table|md|csv|json|jsonl", help="What to print.")]
Save = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows as JSON, too.")]
Compare = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Compare with rows that --save wrote or --format json printed.")
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.png|svg", help="Draw the rows (needs nybble[plot]).")]
Against = Annotated[
    str | None, typer.Option(metavar="ENGINE,...", help=f"Measure other engines too, in turn: {', '.join(PEERS)}.")
]
PeerPython = Annotated[
    list[str] | None, typer.Option(metavar="ENGINE=PATH", help="The Python in which another engine is installed.")
]
PeerModel = Annotated[
    list[str] | None, typer.Option(metavar="ENGINE=PATH", help="The model as another engine wants it.")
]
Shape = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"Measure a published architecture with random weights: {', '.join(SHAPES)}."),
]
Op = Annotated[
    str | None, typer.Option("--op", metavar="linear", help="Measure an op on its own, with every kernel there is.")
]
OpRows = Annotated[str, typer.Option("--rows", "-M", metavar="COUNT,...", help="Rows of activations for --op.")]
OpFeatures = Annotated[int, typer.Option("--features", "-K", min=1, metavar="COUNT", help="Inputs for --op.")]
OpOutputs = Annotated[int, typer.Option("--outputs", "-N", min=1, metavar="COUNT", help="Outputs for --op.")]
Bits = Annotated[int, typer.Option(metavar="2|4|8|16", help="Bits of random weights; 16: fp16.")]
Block = Annotated[
    int,
    typer.Option(
        metavar="16..256",
        help="Random weights that share a scale. Packed, those with a scale for each output are blocks of 256.",
    ),
]
Asymmetric = Annotated[bool, typer.Option("--asym", help="Random weights with an offset for each block.")]
