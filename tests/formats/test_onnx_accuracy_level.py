"""Setting accuracy_level: nothing else may change, whatever else the file holds."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from nybble.errors import InvalidParameter, ModelFileError, NybbleError
from nybble.formats.onnx_accuracy_level import patch_accuracy_level
from nybble.formats.protobuf_edit import length_field, text_field, varint_field

onnx = pytest.importorskip("onnx")


def matmul(name: str, **attributes: object) -> onnx.NodeProto:
    return onnx.helper.make_node(
        "MatMulNBits", ["x", "w"], ["y"], name=name, domain="com.microsoft", bits=4, block_size=32, **attributes
    )


def model_of(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    weights = onnx.numpy_helper.from_array(np.arange(40, dtype=np.uint8), "w")
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "toy", [], [], [weights]))


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "in.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def level_of(node: onnx.NodeProto) -> int | None:
    values = [attribute.i for attribute in node.attribute if attribute.name == "accuracy_level"]
    assert len(values) <= 1
    return values[0] if values else None


@pytest.mark.parametrize("level", [0, 1, 4])
def test_what_onnx_would_write(tmp_path: Path, level: int) -> None:
    """Guards against anything but the level changing: the bytes equal those of the model edited as objects."""
    model = model_of(matmul("a"), matmul("b", accuracy_level=1), onnx.helper.make_node("MatMul", ["x", "v"], ["z"]))
    target = tmp_path / "out.onnx"
    nodes = patch_accuracy_level(saved(tmp_path, model), target, level)
    for node in model.graph.node[:2]:
        present = [attribute for attribute in node.attribute if attribute.name == "accuracy_level"]
        for attribute in present:
            attribute.i = level
        if not present:
            node.attribute.append(onnx.helper.make_attribute("accuracy_level", level))
    assert target.read_bytes() == model.SerializeToString()
    assert (nodes.all, nodes.meant, nodes.changed) == (2, 2, 1 if level == 1 else 2)


def test_twice_is_once(tmp_path: Path) -> None:
    source = saved(tmp_path, model_of(matmul("a"), matmul("b", accuracy_level=4)))
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    patch_accuracy_level(source, once, 4)
    assert patch_accuracy_level(once, twice, 4).changed == 0
    assert once.read_bytes() == twice.read_bytes()


def test_clear_undoes(tmp_path: Path) -> None:
    source = saved(tmp_path, model_of(matmul("a"), matmul("b")))
    set_, cleared = tmp_path / "set.onnx", tmp_path / "cleared.onnx"
    patch_accuracy_level(source, set_, 4)
    patch_accuracy_level(set_, cleared, None)
    assert set_.read_bytes() != source.read_bytes() == cleared.read_bytes()


def test_only_the_named(tmp_path: Path) -> None:
    source, target = saved(tmp_path, model_of(matmul("/mlp/up"), matmul("/lm_head"))), tmp_path / "out.onnx"
    assert patch_accuracy_level(source, target, 4, "mlp|attn").meant == 1
    assert [level_of(node) for node in onnx.load(target).graph.node] == [4, None]


def test_unknown_fields_stay(tmp_path: Path) -> None:
    """Guards against fields of a newer ONNX, and lengths longer than they need be, getting lost."""
    unknown = text_field(3000, "of the future") + varint_field(2999, 7)
    node = b"".join((matmul("a").SerializeToString(), unknown))
    padded = bytes([0x9A, 0x01, 0x81, 0x80, 0x00])  # field 19, length 1 in three bytes
    graph = b"".join(length_field(1, [node])) + unknown
    source = tmp_path / "in.onnx"
    source.write_bytes(unknown + padded + b"!" + b"".join(length_field(7, [graph])) + unknown)
    target = tmp_path / "out.onnx"
    patch_accuracy_level(source, target, 4)
    attribute = onnx.helper.make_attribute("accuracy_level", 4).SerializeToString()
    last = matmul("a").SerializeToString()
    domain = len(last) - len(text_field(7, "com.microsoft"))
    node = last[:domain] + b"".join(length_field(5, [attribute])) + last[domain:] + unknown
    graph = b"".join(length_field(1, [node])) + unknown
    assert target.read_bytes() == unknown + padded + b"!" + b"".join(length_field(7, [graph])) + unknown


def test_nodes_of_subgraphs_and_functions(tmp_path: Path) -> None:
    inner = onnx.helper.make_graph([matmul("inner")], "then", [], [])
    model = model_of(onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner), matmul("outer"))
    model.functions.append(
        onnx.helper.make_function("d", "f", ["x", "w"], ["y"], [matmul("of f")], [onnx.helper.make_opsetid("", 21)])
    )
    target = tmp_path / "out.onnx"
    assert patch_accuracy_level(saved(tmp_path, model), target, 4).changed == 4
    patched = onnx.load(target)
    branches = [attribute.g.node[0] for attribute in patched.graph.node[0].attribute]
    assert [level_of(node) for node in (*branches, patched.graph.node[1], patched.functions[0].node[0])] == [4] * 4


def test_more_than_two_gibibytes(tmp_path: Path) -> None:
    """Guards against 32-bit lengths. The weights are a hole in the file, so that nobody waits for a disk."""
    size = (2 << 30) + 12345
    head = b"".join(length_field(1, [matmul("a").SerializeToString()]))
    tensor = varint_field(2, 2) + text_field(8, "w") + varint_field(1, size)
    raw = bytes([0x4A]) + _varint(size)
    tensor_head = tensor + raw
    initializer = bytes([0x2A]) + _varint(len(tensor_head) + size) + tensor_head
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    with source.open("wb") as file:
        graph_bytes = len(head) + len(initializer) + size
        file.write(bytes([0x3A]) + _varint(graph_bytes) + head + initializer)
        file.seek(size - 1, os.SEEK_CUR)
        file.write(b"\x01")
    try:
        assert patch_accuracy_level(source, target, 4).changed == 1
        added = len(b"".join(length_field(5, [onnx.helper.make_attribute("accuracy_level", 4).SerializeToString()])))
        assert target.stat().st_size == source.stat().st_size + added
        with target.open("rb") as file:
            file.seek(-2, os.SEEK_END)
            assert file.read() == b"\x00\x01"
    finally:
        target.unlink(missing_ok=True)


def _varint(value: int) -> bytes:
    return varint_field(1, value)[1:]


def test_refusals(tmp_path: Path) -> None:
    source, target = saved(tmp_path, model_of(matmul("a"))), tmp_path / "out.onnx"
    with pytest.raises(InvalidParameter, match="the model itself"):
        patch_accuracy_level(source, source, 4)
    link = tmp_path / "link.onnx"
    link.symlink_to(source)
    with pytest.raises(InvalidParameter, match="the model itself"):
        patch_accuracy_level(source, link, 4)
    for level in (-1, 5):
        with pytest.raises(InvalidParameter, match="0 to 4"):
            patch_accuracy_level(source, target, level)
    with pytest.raises(InvalidParameter, match="regular expression"):
        patch_accuracy_level(source, target, 4, "(")
    with pytest.raises(ModelFileError, match="none of its 1 nodes matches"):
        patch_accuracy_level(source, target, 4, "nothing")
    plain = tmp_path / "plain.onnx"
    plain.write_bytes(model_of().SerializeToString())
    with pytest.raises(ModelFileError, match=r"no com\.microsoft::MatMulNBits node"):
        patch_accuracy_level(plain, target, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "link.onnx", "plain.onnx"]


def test_weights_elsewhere(tmp_path: Path) -> None:
    """Guards against a patched model that cannot find its weights."""
    model = model_of(matmul("a"))
    source = tmp_path / "in.onnx"
    onnx.save(model, source, save_as_external_data=True, location="in.data", size_threshold=0)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(InvalidParameter, match=r"in\.data"):
        patch_accuracy_level(source, other / "out.onnx", 4)
    patch_accuracy_level(source, tmp_path / "out.onnx", 4)
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0]), np.arange(40)
    )
    assert not list(other.iterdir())


def test_mutants(tmp_path: Path) -> None:
    """Guards against damaged files ending in anything but one of our errors, or leaving something behind."""
    inner = onnx.helper.make_graph([matmul("inner")], "then", [], [])
    model = model_of(matmul("a", accuracy_level=2), onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner))
    source, target = saved(tmp_path, model), tmp_path / "out.onnx"
    original = source.read_bytes()
    chance = random.Random(5)
    refused = 0
    for _ in range(600):
        damaged = bytearray(original)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        source.write_bytes(damaged[: chance.choice((len(damaged), chance.randrange(len(damaged))))])
        try:
            patch_accuracy_level(source, target, 4)
        except NybbleError:
            refused += 1
            assert not target.exists()
        target.unlink(missing_ok=True)
    assert 100 < refused < 600
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
