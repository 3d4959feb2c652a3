"""``nybble convert``: writes a model in another format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .output import megabytes, note, work_progress

if TYPE_CHECKING:
    from ..conversion.folder import WrittenFolder

EXAMPLES = (
    "nybble convert smollm2-135m smollm2-onnx",
    "nybble convert model.Q4_1.gguf model-onnx --requantise",
)

Source = Annotated[str, typer.Argument(metavar="MODEL", help=options.ANY_MODEL_HELP)]
Target = Annotated[Path, typer.Argument(metavar="FOLDER", help="What to make; it must not be there yet.")]


Requantise = Annotated[
    bool,
    typer.Option(
        "--requantise",
        help="Round Q4_1 and Q4_K to 8 bits, for ONNX Runtime's fast path; Q5_1 and Q5_K always are.",
    ),
]


def convert(source: Source, target: Target, requantise: Requantise = False, offline: options.Offline = False) -> None:
    """Write a GGUF model as a folder that ONNX Runtime, ONNX Runtime GenAI and nybble load.

    Weights stay as they are, but for those of Q5_1 and Q5_K, and what --requantise rounds. The folder has model.onnx
    with its weights beside it, genai_config.json, and the tokeniser where it is byte-level BPE.
    """
    from ..conversion.folder import gguf_to_onnx
    from ..hub.resolve import resolve

    path = Path(source)
    if not path.exists():
        with work_progress() as progress:
            path = resolve(source, offline=offline, progress=progress)
    for remark in _remarks(gguf_to_onnx(path, target, requantise=requantise)):
        note(remark)


def _remarks(written: WrittenFolder) -> list[str]:
    remarks = [f"{written.folder}: {megabytes(written.bytes)}"]
    if written.float_zero_points:
        remarks.append(
            f"{len(written.float_zero_points)} tensors with offsets got float zero points, which ONNX Runtime's own "
            "kernels run slowly; there, use nybble.ort, or convert with --requantise"
        )
    if written.requantised:
        remarks.append(f"{len(written.requantised)} tensors with offsets were rounded to 8 bits")
    if written.widened:
        remarks.append(f"{', '.join(written.widened)} became fp32: an embedding cannot have float zero points")
    if not written.has_tokenizer:
        remarks.append("no tokenizer.json: only byte-level BPE is written; copy the original's into the folder")
    return remarks
