"""MatMulNBits and the QDQ form, each turned into the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nybble.conversion.folder import to_onnx
from nybble.conversion.qdq import from_qdq, to_qdq
from nybble.errors import InvalidParameter, ModelFileError, UnsupportedFeature
from nybble.formats.onnx import open_onnx
from nybble.formats.open import open_checkpoint
from nybble.graph.ops import Linear
from nybble.models.build import build_graph
from nybble.quant.blocks import dequantise
from tests.engine.small_models import small_gguf
from tests.models.onnx_decoder import Form, runtime_logits, write_decoder

TOKENS = [5, 71, 3, 3, 40, 12, 79, 0, 33]
FORMS = {
    "4 bits": Form(),
    "4 bits with zero points": Form(zero_points="packed"),
    "8 bits": Form(bits=8),
    "8 bits with zero points": Form(bits=8, zero_points="packed", flat=True),
    "blocks beyond K": Form(block=128, zero_points="packed"),
    "blocks that end behind K": Form(block=64, zero_points="packed"),
    "fp16 scales": Form(scales=np.float16),
    "biases": Form(bias=True, attention="separate"),
    "biases inside": Form(bias=True, bias_inside=True, attention="separate"),
    "shared embedding": Form(head="shared", zero_points="packed"),
}


def weights_of(path: Path) -> list[np.ndarray]:
    """The weights of all linears in order of execution, fp32 (N, K)."""
    graph = build_graph(open_checkpoint(path))
    return [dequantise(graph.tensors[name]) for op in graph.ops if isinstance(op, Linear) for name in op.weights]


def kinds_of(path: Path) -> set[str]:
    return {node.op_type for node in open_onnx(path).nodes}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_there_and_back(tmp_path: Path, form: Form) -> None:
    path = write_decoder(tmp_path / "model.onnx", replace(form, level=1))
    qdq, back = tmp_path / "qdq.onnx", tmp_path / "back.onnx"
    expected = weights_of(path)
    assert to_qdq(path, qdq) == len(expected) == from_qdq(qdq, back)
    assert "MatMulNBits" not in kinds_of(qdq) and "DequantizeLinear" not in kinds_of(back)
    for made in (qdq, back):
        assert all(np.array_equal(found, wanted) for found, wanted in zip(weights_of(made), expected, strict=True))
    assert {node.attributes["accuracy_level"] for node in open_onnx(back).nodes if node.op_type == "MatMulNBits"} == {4}


# To ONNX Runtime, scales of another type than the activations are no valid model.
@pytest.mark.parametrize("name", sorted(FORMS.keys() - {"fp16 scales"}))
def test_onnx_runtime_runs_it(tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    path = write_decoder(tmp_path / "model.onnx", replace(form, level=1))
    qdq = tmp_path / "qdq.onnx"
    to_qdq(path, qdq)
    expected, found = runtime_logits(path, TOKENS, form), runtime_logits(qdq, TOKENS, form)
    # Both multiply in fp32, perhaps in another order.
    assert np.abs(found - expected).max() < 2.0**-15 * np.abs(expected).max()


def test_weights_in_another_file(tmp_path: Path) -> None:
    folder = to_onnx(small_gguf(tmp_path / "model.gguf", storage="Q8_0"), tmp_path / "model").folder
    made = tmp_path / "elsewhere"
    made.mkdir()
    expected = weights_of(folder / "model.onnx")
    to_qdq(folder / "model.onnx", made / "qdq.onnx")
    assert sorted(path.name for path in made.iterdir()) == ["qdq.onnx", "qdq.onnx.data"]
    assert all(map(np.array_equal, weights_of(made / "qdq.onnx"), expected))
    # What was replaced is gone.
    assert (made / "qdq.onnx.data").stat().st_size < 1.1 * (folder / "model.onnx.data").stat().st_size


@pytest.mark.parametrize(
    ("form", "problem"),
    [(Form(bits=2), "2 bits"), (Form(zero_points="float"), "zero points are floats"), (Form(linear="qdq"), "nothing")],
)
def test_what_cannot_be_decoded_before_use(tmp_path: Path, form: Form, problem: str) -> None:
    path = write_decoder(tmp_path / "model.onnx", form)
    with pytest.raises((UnsupportedFeature, ModelFileError), match=problem):
        to_qdq(path, tmp_path / "qdq.onnx")
    assert [found.name for found in tmp_path.iterdir()] == ["model.onnx"]


def test_refusals(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = write_decoder(tmp_path / "model.onnx", Form())
    with pytest.raises(ModelFileError, match="nothing to convert"):
        from_qdq(path, tmp_path / "back.onnx")
    with pytest.raises(InvalidParameter, match="is there already"):
        to_qdq(path, path)
    with pytest.raises(InvalidParameter, match="is no folder"):
        to_qdq(path, tmp_path / "missing" / "qdq.onnx")
    model = onnx.load(path)
    model.opset_import[0].version = 20
    onnx.save(model, path)
    with pytest.raises(UnsupportedFeature, match="is of opset 20"):
        to_qdq(path, tmp_path / "qdq.onnx")
    assert [found.name for found in tmp_path.iterdir()] == ["model.onnx"]


def test_weights_of_other_forms_stay(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = write_decoder(tmp_path / "model.onnx", Form(linear="qdq"))
    model = onnx.load(path)
    node = next(node for node in model.graph.node if node.op_type == "DequantizeLinear")
    scales = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
    whole = onnx.numpy_helper.to_array(scales)[0]
    scales.CopyFrom(onnx.numpy_helper.from_array(whole, scales.name))
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("axis", 1))
    onnx.save(model, path)
    expected = weights_of(path)
    assert from_qdq(path, tmp_path / "back.onnx") == len(expected) - 1
    assert all(map(np.array_equal, weights_of(tmp_path / "back.onnx"), expected))
    assert kinds_of(tmp_path / "back.onnx") >= {"DequantizeLinear", "MatMulNBits"}
