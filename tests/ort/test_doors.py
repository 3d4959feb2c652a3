"""Guards against: nodes claimed that should not be, refusals that do not say why, weights held twice, extra threads."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import nybble  # noqa: E402
from nybble.errors import KernelUnavailable  # noqa: E402

from .doors import DOORS, HAS_PROVIDERS, options, provider_of_node, session, stock  # noqa: E402
from .nodes import Node  # noqa: E402

NODE = Node(128, 64, zero_points="packed", has_bias=True)
needs_providers = pytest.mark.skipif(not HAS_PROVIDERS, reason="this ONNX Runtime has no plugins")


def halved(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.reshape(-1)[: values.size // 2]


REFUSED = {
    "g_idx is given": (NODE, {"g_idx": np.zeros(128, np.int32)}),
    "B: expected 4096 elements, found 2048": (NODE, {"B": halved(np.zeros(4096, np.uint8)).reshape(32, 4, 16)}),
    "scales: expected 256 elements, found 128": (NODE, {"scales": halved(NODE.scales())}),
    "zero_points: expected 128 elements, found 64": (NODE, {"zero_points": np.zeros(64, np.uint8)}),
    "bias: expected 64 elements, found 32": (NODE, {"bias": halved(NODE.bias())}),
    "a scale of row 3 is not finite in fp16": (NODE, {"scales": np.where(np.arange(256) == 13, 7e4, 0.1)}),
    "a scale of row 2 is not finite in fp16": (NODE, {"scales": np.where(np.arange(256) == 8, np.nan, 0.1)}),
    "the scales of row 1 are too small for fp16": (
        NODE,
        {"scales": np.where(np.arange(256) // 4 == 1, 1e-6, 0.1).reshape(64, 4)},
    ),
    "block_size is 8": (Node(128, 64, block=8), {}),
    "block_size is 48": (Node(96, 64, block=48), {}),
    "accuracy_level is 9": (Node(128, 64, accuracy_level=9), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_the_custom_op_says_why_it_refuses(reason: str) -> None:
    node, inputs = REFUSED[reason]
    inputs = {name: values.astype(np.float32) if name == "scales" else values for name, values in inputs.items()}
    with pytest.raises(Exception, match="MatMulNBits node 'the_node'") as refused:
        session("custom op", node, **inputs)
    assert reason in str(refused.value)


def test_the_custom_op_wants_constant_weights() -> None:
    import onnx

    model = onnx.load_from_string(NODE.on_custom_op().model())
    codes = next(tensor for tensor in model.graph.initializer if tensor.name == "B")
    model.graph.initializer.remove(codes)
    model.graph.input.append(onnx.helper.make_tensor_value_info("B", onnx.TensorProto.UINT8, [64, 4, 16]))
    with pytest.raises(Exception, match="B is not constant"):
        onnxruntime.InferenceSession(model.SerializeToString(), nybble.ort.session_options(options()))


@pytest.mark.parametrize("door", DOORS)
def test_activations_of_another_width_are_an_error(door: str) -> None:
    made = session(door, NODE)
    with pytest.raises(Exception, match="K = 128"):
        made.run(None, {"A": np.zeros((2, 127), np.float32)})
    assert made.run(None, {"A": NODE.activations(2)})[0].shape == (2, 64)


@needs_providers
def test_the_provider_runs_the_node(tmp_path: Path) -> None:
    assert provider_of_node(NODE, tmp_path) == "nybble"


@needs_providers
@pytest.mark.parametrize(
    "node",
    [Node(128, 64, accuracy_level=1), Node(128, 64, dtype=np.float32, seed=5, accuracy_level=2)],
    ids=["fp32", "fp16"],
)
def test_the_provider_leaves_float_activations_to_onnxruntime(node: Node, tmp_path: Path) -> None:
    assert provider_of_node(node, tmp_path) == "CPUExecutionProvider"


@needs_providers
@pytest.mark.parametrize(
    "inputs",
    [{"scales": np.full((64, 4), 1e-6, np.float32)}, {"scales": np.full((64, 4), 7e4, np.float32)}],
    ids=["small scales", "large scales"],
)
def test_the_provider_leaves_what_it_refuses_to_onnxruntime(inputs: dict[str, Any]) -> None:
    activations = NODE.activations(2)
    (ours,) = session("provider", NODE, **inputs).run(None, {"A": activations})
    (theirs,) = stock(NODE, **inputs).run(None, {"A": activations})
    assert np.array_equal(ours, theirs)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@needs_providers
def test_sessions_of_equal_weights_share_them(tmp_path: Path) -> None:
    node = Node(2048, 16384)  # 17 MB of codes, which each session may keep as it read them; 18 MB packed
    path = tmp_path / "model.onnx"
    path.write_bytes(node.model())
    activations = node.activations(1)

    def start() -> Any:
        made = onnxruntime.InferenceSession(str(path), nybble.ort.session_options(options()))
        made.run(None, {"A": activations})
        gc.collect()
        return made

    first = start()
    before = resident_bytes()
    second = start()
    assert resident_bytes() - before < 17e6 + 9e6
    (expected,) = first.run(None, {"A": activations})
    del first
    assert np.array_equal(second.run(None, {"A": activations})[0], expected)


@pytest.mark.parametrize("door", DOORS)
def test_no_threads_but_those_of_the_session(door: str) -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    made = session(door, NODE, threads=1)
    made.run(None, {"A": NODE.activations(70)})
    assert threads() == before


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(KernelUnavailable, match="pip install onnxruntime"):
        nybble.ort.session_options()


def test_with_an_onnxruntime_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.16.3")
    with pytest.raises(KernelUnavailable, match=r"1\.16\.3 is too old"):
        nybble.ort.session_options()
    monkeypatch.setattr(onnxruntime, "__version__", "1.22.1")
    with pytest.raises(KernelUnavailable, match=r"1\.22\.1 has no plugin execution providers"):
        nybble.ort.register()
