"""The ONNX reader against the ``onnx`` package, and external data in honest and hostile places."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nybble.errors import ModelFileError, UnsupportedFeature
from nybble.formats.onnx import open_onnx
from nybble.formats.onnx_model import DataType, OnnxTensor

from .toy_onnx import every_kind, onnx, weights_file, with_external


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(every_kind().SerializeToString())
    return path


def test_every_initialiser_reads_as_onnx_reads_it(toy: Path) -> None:
    model = open_onnx(toy)
    expected = {tensor.name: tensor for tensor in every_kind().graph.initializer}
    assert list(model.initializers) == list(expected)
    for name, proto in expected.items():
        tensor = model.initializers[name]
        assert tensor.shape == tuple(proto.dims)
        assert tensor.data_type == proto.data_type
        if tensor.data_type is DataType.UINT4:
            assert tensor.octets.tolist() == [0x21, 0x0F]
        else:
            np.testing.assert_array_equal(
                tensor.array(), onnx.numpy_helper.to_array(proto).astype(tensor.array().dtype)
            )


def test_nodes_values_and_metadata(toy: Path) -> None:
    model = open_onnx(toy)
    (node,) = model.nodes
    assert (node.op_type, node.domain, node.name) == ("Anything", "com.microsoft", "first")
    assert node.inputs == ("tokens", "", "raw float")
    assert node.outputs == ("result",)
    attributes = dict(node.attributes)
    inside = attributes.pop("tensor")
    assert isinstance(inside, OnnxTensor)
    assert inside.array().tolist() == [5]
    assert attributes == {
        "whole": -3,
        "real": 0.25,
        "word": "bits",
        "wholes": [1, -1, 0],
        "reals": [0.5, 1.0],
        "words": ["a", "b"],
    }
    assert [(value.name, value.shape) for value in model.inputs] == [("tokens", (None, 7))]
    assert [(value.name, value.shape) for value in model.outputs] == [("result", None)]
    assert model.opsets == {"": 21, "com.microsoft": 1}
    assert model.metadata == {"author": "nobody"}


def test_a_node_says_where_it_lies_in_the_file(toy: Path) -> None:
    (node,) = open_onnx(toy).nodes
    octets = toy.read_bytes()[node.start : node.end]
    proto = onnx.GraphProto.FromString(octets)
    assert proto.node[0].name == "first"


def test_raw_weights_are_views_of_the_file(toy: Path) -> None:
    tensor = open_onnx(toy).initializers["raw codes"]
    assert not tensor.octets.flags.writeable
    assert not tensor.octets.flags.owndata


def refused(change: str) -> onnx.ModelProto:
    model = every_kind()
    graph = model.graph
    match change:
        case "twice":
            graph.initializer.append(graph.initializer[0])
        case "too few bytes":
            graph.initializer[0].raw_data = graph.initializer[0].raw_data[:-1]
        case "giant":
            graph.initializer[0].dims[0] = 2**62
        case "negative":
            graph.initializer[0].dims[0] = -3
        case "text":
            graph.initializer[0].data_type = onnx.TensorProto.STRING
        case "unknown type":
            graph.initializer[0].data_type = 99
        case "sparse":
            graph.sparse_initializer.add()
        case "segment":
            graph.initializer[0].segment.begin = 1
        case "both places":
            graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
        case "wrong field":
            graph.initializer[5].data_type = onnx.TensorProto.FLOAT
        case "attribute twice":
            graph.node[0].attribute.append(graph.node[0].attribute[0])
        case "no graph":
            model.ClearField("graph")
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("twice", "appears twice"),
        ("too few bytes", "has 47 bytes; its shape"),
        ("giant", "the product 4611686018427387904 x 4 x 32 is not within"),
        ("negative", "has the shape"),
        ("text", "elements are of type 8"),
        ("unknown type", "elements are of type 99"),
        ("sparse", "sparse initialisers"),
        ("segment", "stored in segments"),
        ("both places", "has external data and data of its own"),
        ("wrong field", "is FLOAT but holds numbers in field 7"),
        ("attribute twice", "has the attribute"),
        ("no graph", "has no graph"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(refused(change).SerializeToString())
    with pytest.raises((ModelFileError, UnsupportedFeature), match=message) as raised:
        open_onnx(path)
    assert str(raised.value).startswith(str(path))


def test_a_second_graph_is_refused(tmp_path: Path) -> None:
    octets = every_kind().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(octets + octets)  # which protobuf would merge
    with pytest.raises(ModelFileError, match="second graph"):
        open_onnx(path)


@pytest.mark.parametrize("location", ["weights.data", "./weights.data", "deep/er/weights.data"])
def test_external_data_in_the_folder(tmp_path: Path, location: str) -> None:
    path = with_external(tmp_path, location)
    weights = weights_file(tmp_path / location)
    model = open_onnx(path)
    assert model.initializers["weights"].array().tolist() == list(range(16))
    assert [file.path for file in model.files[1:]] == [str(weights)]
    assert model.file_bytes == path.stat().st_size + 128


def test_external_data_through_links_of_a_hub_cache(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "commit" / "cpu"
    blob = with_external(tmp_path / "made").rename(repository / "blobs" / "aaa")
    weights = weights_file(repository / "blobs" / "bbb")
    snapshot.mkdir(parents=True)
    (snapshot / "model.onnx").symlink_to(blob)
    (snapshot / "weights.data").symlink_to(weights)
    assert open_onnx(snapshot / "model.onnx").initializers["weights"].array()[15] == 15
    other = weights_file(tmp_path / "models--org--other" / "blobs" / "ccc")
    (snapshot / "weights.data").unlink()
    (snapshot / "weights.data").symlink_to(other)
    with pytest.raises(ModelFileError, match="leads out of the model's folder"):
        open_onnx(snapshot / "model.onnx")


@pytest.mark.parametrize(
    "location",
    ["../weights.data", "inner/../../weights.data", "/etc/passwd", "", ".", "C:\\weights", "a\\b", "x" * 2000, "a\nb"],
)
def test_external_data_elsewhere_are_refused(tmp_path: Path, location: str) -> None:
    weights_file(tmp_path / "weights.data")
    with pytest.raises(ModelFileError) as raised:
        open_onnx(with_external(tmp_path / "folder", location))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    outside = weights_file(tmp_path / "outside.data")
    path = with_external(tmp_path / "folder")
    link = tmp_path / "folder" / "weights.data"
    link.symlink_to(outside)
    with pytest.raises(ModelFileError, match="leads out of the model's folder"):
        open_onnx(path)
    link.unlink()
    link.symlink_to(link.name)
    with pytest.raises(ModelFileError, match="cannot be opened"):
        open_onnx(path)
    link.unlink()
    os.mkfifo(link)
    with pytest.raises(ModelFileError, match="not a regular file"):
        open_onnx(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": "65"},
        {"offset": "-1"},
        {"offset": "9" * 30},
        {"length": "65"},
        {"length": "60"},
        {"length": "ten"},
        {"offset": "128", "length": "64"},
        {"location": ""},
    ],
)
def test_external_ranges_are_checked(tmp_path: Path, changes: dict[str, str]) -> None:
    weights_file(tmp_path / "weights.data")
    with pytest.raises(ModelFileError):
        open_onnx(with_external(tmp_path, **changes))


def test_overlapping_external_data(tmp_path: Path) -> None:
    weights_file(tmp_path / "weights.data")
    path = with_external(tmp_path)
    model = onnx.ModelProto.FromString(path.read_bytes())
    shared = model.graph.initializer.add()
    shared.CopyFrom(model.graph.initializer[0])
    shared.name = "shared"
    path.write_bytes(model.SerializeToString())
    assert open_onnx(path).initializers["shared"].array()[3] == 3
    next(entry for entry in shared.external_data if entry.key == "offset").value = "60"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match=r"weights: begins at byte 64 of weights\.data, inside shared"):
        open_onnx(path)
