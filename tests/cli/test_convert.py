"""``nybble convert``: what it says; what it writes is tested in tests/conversion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.outcome import Nybble
from tests.engine.small_models import small_gguf
from tests.models.tiny import TinyModel


@pytest.mark.parametrize(
    ("storage", "options", "told"),
    [("Q8_0", (), ""), ("Q4_1", (), "float zero points"), ("Q4_1", ("--requantise",), "rounded to 8 bits")],
)
def test_convert(nybble: Nybble, tmp_path: Path, storage: str, options: tuple[str, ...], told: str) -> None:
    path = small_gguf(tmp_path / "model.gguf", storage=storage)
    outcome = nybble("convert", path, tmp_path / "made", *options)
    assert (outcome.code, outcome.output) == (0, "")
    assert told in outcome.remarks and str(tmp_path / "made") in outcome.remarks
    assert ("became fp32" in outcome.remarks) == (told == "float zero points")
    assert (tmp_path / "made" / "model.onnx").exists()
    again = nybble("convert", path, tmp_path / "made")
    assert again.code == 2 and "is there already" in again.error


def test_a_folder_of_transformers(nybble: Nybble, tmp_path: Path) -> None:
    """It is converted, run and inspected by its name alone."""
    from tests.models.safetensors_folder import write_folder

    folder = write_folder(tmp_path / "model", TinyModel(tied=True))
    outcome = nybble("convert", folder, tmp_path / "made")
    assert (outcome.code, outcome.output) == (0, ""), outcome.error
    asked = ("--max-tokens", "4", "--json", "the")
    answers = [nybble("run", "--model", path, *asked) for path in (folder, tmp_path / "made")]
    texts = [json.loads(answer.output)["text"] for answer in answers]
    assert texts[0] == texts[1]
    assert "safetensors, llama" in nybble("inspect", folder).output
    assert nybble("convert", folder, tmp_path / "x", "--to", "qdq").code == 2


def test_linears_of_onnx(nybble: Nybble, tmp_path: Path) -> None:
    made, qdq, back = tmp_path / "made", tmp_path / "qdq.onnx", tmp_path / "back.onnx"
    path = small_gguf(tmp_path / "model.gguf", storage="Q8_0")
    assert nybble("convert", path, made).code == 0
    outcome = nybble("convert", made, qdq, "--to", "qdq")
    assert (outcome.code, outcome.output) == (0, "") and "15 MatMulNBits nodes decoded" in outcome.remarks
    assert "15 MatMulNBits nodes made" in nybble("convert", qdq, back, "--to", "nbits").remarks
    for arguments, named in (
        ((made, tmp_path / "x.onnx"), "--to qdq"),
        ((made, tmp_path / "x.onnx", "--to", "qdq", "--requantise"), "nothing else"),
        ((made, tmp_path / "x.onnx", "--to", "gguf"), "qdq or nbits"),
        ((path, tmp_path / "x", "--to", "qdq"), "leave out --to"),
    ):
        outcome = nybble("convert", *arguments)
        assert outcome.code == 2 and named in outcome.error
