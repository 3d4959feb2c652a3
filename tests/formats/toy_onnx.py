"""Small ONNX files, built by the ``onnx`` package, for readers to be tested with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")


def every_kind() -> onnx.ModelProto:
    """A model with each element type, each way of storing numbers, and each kind of attribute."""
    helper, types = onnx.helper, onnx.TensorProto
    random = np.random.default_rng(1)
    tensors = [
        onnx.numpy_helper.from_array(random.normal(size=(3, 4)).astype(np.float32), "raw float"),
        onnx.numpy_helper.from_array(random.normal(size=5).astype(np.float16), "raw half"),
        onnx.numpy_helper.from_array(random.integers(0, 256, (2, 3, 4), np.uint8), "raw codes"),
        onnx.numpy_helper.from_array(random.normal(size=2), "raw double"),
        helper.make_tensor("listed float", types.FLOAT, (3,), [1.5, -2.0, float("inf")]),
        helper.make_tensor("listed long", types.INT64, (2, 2), [1, -2, 2**62, -(2**63)]),
        helper.make_tensor("listed int", types.INT32, (2,), [-1, 2**31 - 1]),
        helper.make_tensor("listed byte", types.INT8, (3,), [-1, 0, 127]),
        helper.make_tensor("listed half", types.FLOAT16, (2,), [0.5, -1.0]),
        helper.make_tensor("listed bfloat", types.BFLOAT16, (2,), [0.5, -3.0]),
        helper.make_tensor("listed bool", types.BOOL, (2,), [True, False]),
        helper.make_tensor("nibbles", types.UINT4, (3,), [1, 2, 15]),
        helper.make_tensor("nothing", types.FLOAT, (0,), []),
        helper.make_tensor("scalar", types.INT64, (), [7]),
    ]
    node = helper.make_node(
        "Anything",
        ["tokens", "", "raw float"],
        ["result"],
        name="first",
        domain="com.microsoft",
        whole=-3,
        real=0.25,
        word="bits",
        wholes=[1, -1, 0],
        reals=[0.5, 1.0],
        words=["a", "b"],
        tensor=helper.make_tensor("inside", types.INT64, (1,), [5]),
    )
    graph = helper.make_graph(
        [node],
        "toy",
        [helper.make_tensor_value_info("tokens", types.INT64, ["batch", 7])],
        [helper.make_tensor_value_info("result", types.FLOAT, None)],
        tensors,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    entry = model.metadata_props.add()
    entry.key, entry.value = "author", "nobody"
    return model


def with_external(folder: Path, location: str = "weights.data", **changes: str) -> Path:
    """A model of one initialiser of 16 floats in ``location``, its external-data entries changed; returns its path."""
    weights = np.arange(16, dtype=np.float32)
    tensor = onnx.numpy_helper.from_array(weights, "weights")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "64", "length": "64", **changes}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    node = onnx.helper.make_node("Identity", ["weights"], ["out"])
    value = onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [16])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "toy", [], [value], [tensor]))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def weights_file(path: Path) -> Path:
    """64 bytes of something else, then the 16 floats of :func:`with_external`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(64) + np.arange(16, dtype=np.float32).tobytes())
    return path
