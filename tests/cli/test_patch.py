"""``nybble patch``: what it says; what it writes is tested in tests/formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.outcome import Nybble

onnx = pytest.importorskip("onnx")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    node = onnx.helper.make_node("MatMulNBits", ["x"], ["y"], name="/mlp/up", domain="com.microsoft")
    path = tmp_path / "in.onnx"
    path.write_bytes(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [])).SerializeToString())
    return path


def test_set_and_clear(nybble: Nybble, source: Path) -> None:
    patched, cleared = source.with_name("out.onnx"), source.with_name("cleared.onnx")
    outcome = nybble("patch", source, patched, "--accuracy-level", "4")
    assert outcome.code == 0 and outcome.output == ""
    assert "1 of 1 MatMulNBits nodes changed" in outcome.remarks
    assert "1 were so already" in nybble("patch", patched, cleared, "--accuracy-level", "4").remarks
    assert nybble("patch", patched, cleared, "--clear").code == 0
    assert cleared.read_bytes() == source.read_bytes()


def test_custom_op_and_back(nybble: Nybble, source: Path) -> None:
    moved, back = source.with_name("out.onnx"), source.with_name("back.onnx")
    outcome = nybble("patch", source, moved, "--ort-custom-op")
    assert outcome.code == 0 and "1 of 1 MatMulNBits nodes changed" in outcome.remarks
    assert nybble("patch", moved, back, "--no-ort-custom-op").code == 0
    assert back.read_bytes() == source.read_bytes() != moved.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ((), 2, "--clear"),
        (("--clear", "--accuracy-level", "4"), 2, "--clear"),
        (("--ort-custom-op", "--clear"), 2, "--clear"),
        (("--no-ort-custom-op", "--only", "mlp"), 2, "--only"),
        (("--no-ort-custom-op",), 1, "no nybble::MatMulNBits"),
        (("--accuracy-level", "9"), 2, "0 to 4"),
        (("--accuracy-level", "4", "--only", "lm_head"), 1, "none of its 1 nodes"),
    ],
)
def test_mistakes(nybble: Nybble, source: Path, arguments: tuple[str, ...], code: int, named: str) -> None:
    outcome = nybble("patch", source, source.with_name("out.onnx"), *arguments)
    assert (outcome.code, [path.name for path in source.parent.iterdir()]) == (code, ["in.onnx"])
    assert named in outcome.error


def test_a_folder_that_is_not_there(nybble: Nybble, source: Path) -> None:
    outcome = nybble("patch", source, source.parent / "missing" / "out.onnx", "--clear")
    assert outcome.code == 1 and "missing" in outcome.error
