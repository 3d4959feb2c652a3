"""Moving MatMulNBits nodes to the custom operator and back: the model must be as before, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nybble.errors import InvalidParameter, ModelFileError
from nybble.formats.onnx_custom_op import move_from_custom_op, move_to_custom_op

onnx = pytest.importorskip("onnx")


def matmul(name: str) -> onnx.NodeProto:
    return onnx.helper.make_node(
        "MatMulNBits", ["x", "w"], ["y"], name=name, domain="com.microsoft", bits=4, block_size=32
    )


def saved(folder: Path, *nodes: onnx.NodeProto) -> Path:
    weights = onnx.numpy_helper.from_array(np.arange(40, dtype=np.uint8), "w")
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph(nodes, "toy", [], [], [weights])
    path = folder / "in.onnx"
    path.write_bytes(onnx.helper.make_model(graph, opset_imports=opsets).SerializeToString())
    return path


def test_what_onnx_would_write(tmp_path: Path) -> None:
    """Guards against anything but domains changing."""
    inner = onnx.helper.make_graph([matmul("inner")], "then", [], [])
    branch = onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    source = saved(tmp_path, matmul("a"), onnx.helper.make_node("MatMul", ["x", "v"], ["z"]), branch)
    moved, back = tmp_path / "moved.onnx", tmp_path / "back.onnx"
    nodes = move_to_custom_op(source, moved)
    assert (nodes.all, nodes.meant, nodes.changed) == (3, 3, 3)
    model = onnx.load(source)
    inners = [attribute.g.node[0] for attribute in model.graph.node[2].attribute]
    for node in (model.graph.node[0], *inners):
        node.domain = "nybble"
    model.opset_import.append(onnx.helper.make_opsetid("nybble", 1))
    assert onnx.load(moved) == model
    assert move_from_custom_op(moved, back).changed == 3
    assert back.read_bytes() == source.read_bytes()


def test_only_the_named(tmp_path: Path) -> None:
    source, once, twice = saved(tmp_path, matmul("/mlp/up"), matmul("/lm_head")), *(tmp_path / n for n in ("1", "2"))
    assert move_to_custom_op(source, once, "mlp").changed == 1
    assert [node.domain for node in onnx.load(once).graph.node] == ["nybble", "com.microsoft"]
    move_to_custom_op(once, twice)
    assert [opset.domain for opset in onnx.load(twice).opset_import].count("nybble") == 1
    move_from_custom_op(twice, once)
    assert once.read_bytes() == source.read_bytes()


def test_refusals(tmp_path: Path) -> None:
    source, target = saved(tmp_path, matmul("a")), tmp_path / "out.onnx"
    with pytest.raises(InvalidParameter, match="regular expression"):
        move_to_custom_op(source, target, "(")
    with pytest.raises(ModelFileError, match="none of its 1 nodes matches"):
        move_to_custom_op(source, target, "nothing")
    with pytest.raises(ModelFileError, match="no nybble::MatMulNBits node"):
        move_from_custom_op(source, target)
    model = onnx.load(source)
    opsets = [onnx.helper.make_opsetid("com.microsoft", 1)]
    model.functions.append(onnx.helper.make_function("d", "f", ["x", "w"], ["y"], [matmul("of f")], opsets))
    source.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match=r"node 'of f'.*function"):
        move_to_custom_op(source, target)
    assert not target.exists()
