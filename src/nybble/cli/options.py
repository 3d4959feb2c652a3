"""The options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

MODEL_HELP = (
    "A name from `nybble models`, PATH.gguf, PATH.onnx, a folder of ONNX or safetensors, or "
    "org/repo[:file, quant or folder] of a hub. If missing: the default."
)
ANY_MODEL_HELP = "A GGUF, ONNX or safetensors file or its folder, or a name from `nybble models`."

Model = Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help=MODEL_HELP)]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", "-n", metavar="TOKENS", help="Longest answer. If missing: 512.")
]
Temperature = Annotated[
    float | None, typer.Option(metavar="NUMBER", help="Above 0, answers vary; at 0 the likeliest token is taken.")
]
TopK = Annotated[int | None, typer.Option(metavar="COUNT", help="Choose among so many of the likeliest tokens.")]
TopP = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Choose among the likeliest tokens that hold this probability.")
]
MinP = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Drop tokens less likely than this share of the likeliest.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(metavar="NUMBER", help="Above 1, tokens that occurred become less likely.")
]
Seed = Annotated[int | None, typer.Option(metavar="NUMBER", help="Makes random choices repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End the answer at this text; may be repeated.")]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="A system message: who the model should be.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", metavar="COUNT", help="If missing: one for each CPU this process may use."),
]
Context = Annotated[
    int | None,
    typer.Option(metavar="TOKENS", help="Room for prompt and answer. If missing: the model's, at most 8192."),
]
Accuracy = Annotated[
    str, typer.Option(metavar="int8|f32", help="Activations in the linears: int8 is faster, f32 more accurate.")
]
KV = Annotated[
    str,
    typer.Option(
        "--kv",
        metavar="fp32|fp16|bf16|int8",
        help="The KV cache: fp32 takes twice the memory of fp16, int8 half of it.",
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use what is on this machine only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on standard error what is used, and why.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
