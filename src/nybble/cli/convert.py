"""``nybble convert``: writes a model in another format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidParameter
from . import options
from .output import megabytes, note, work_progress

if TYPE_CHECKING:
    from ..conversion.folder import WrittenFolder

EXAMPLES = (
    "nybble convert smollm2-135m smollm2-onnx",
    "nybble convert model.Q4_1.gguf model-onnx --requantise",
    "nybble convert huggingface-folder model-onnx",
    "nybble convert model.onnx qdq.onnx --to qdq",
    "nybble convert qdq.onnx model.onnx --to nbits",
)
FORMS = ("qdq", "nbits")

Source = Annotated[str, typer.Argument(metavar="MODEL", help=options.ANY_MODEL_HELP)]
Target = Annotated[
    Path,
    typer.Argument(metavar="OUT", help="The folder, or the .onnx file from an ONNX model; it must not be there yet."),
]


Requantise = Annotated[
    bool,
    typer.Option(
        "--requantise",
        help="Round Q4_1 and Q4_K to 8 bits, for ONNX Runtime's fast path; Q5_1 and Q5_K always are.",
    ),
]


To = Annotated[
    str | None,
    typer.Option(
        metavar="qdq|nbits",
        help="Of an ONNX model: DequantizeLinear and MatMul in the place of each MatMulNBits, or the reverse.",
    ),
]


def convert(
    source: Source, target: Target, to: To = None, requantise: Requantise = False, offline: options.Offline = False
) -> None:
    """Write a GGUF or safetensors model as a folder that ONNX Runtime, ONNX Runtime GenAI and nybble load, or the
    linears of an ONNX model in another form.

    Weights of GGUF files stay as they are, but for those of Q5_1 and Q5_K, and what --requantise rounds. Floats of
    safetensors become Q4_0: 4 bits in blocks of 32; the embedding and the head 8 bits. The folder has model.onnx with
    its weights beside it, genai_config.json, and the tokeniser: that of the model's folder, or of a GGUF file where it
    is byte-level BPE.
    """
    from ..formats.mapped_file import MappedFile
    from ..formats.onnx_folder import decoder_file, has_decoder
    from ..formats.recognise import looks_like_onnx
    from ..hub.resolve import resolve

    if to not in (None, *FORMS):
        raise InvalidParameter(f"--to is {to!r}; expected {' or '.join(FORMS)}")
    path = Path(source)
    if not path.exists():
        with work_progress() as progress:
            path = resolve(source, offline=offline, progress=progress)
    if path.is_dir() and has_decoder(path):
        path = decoder_file(path)
    is_onnx = not path.is_dir() and looks_like_onnx(MappedFile(path).data)
    if is_onnx and (to is None or requantise):
        raise InvalidParameter(f"{path} is an ONNX model; say --to qdq or --to nbits, and nothing else")
    if is_onnx:
        _convert_linears(path, target, to)
        return
    if to is not None:
        raise InvalidParameter(f"{path} is no ONNX model; leave out --to")
    from ..conversion.folder import to_onnx

    for remark in _remarks(to_onnx(path, target, requantise=requantise)):
        note(remark)


def _convert_linears(source: Path, target: Path, form: str | None) -> None:
    from ..conversion.qdq import from_qdq, to_qdq

    count = (to_qdq if form == "qdq" else from_qdq)(source, target)
    note(f"{target}: {count} {'MatMulNBits nodes decoded before use' if form == 'qdq' else 'MatMulNBits nodes made'}")


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
