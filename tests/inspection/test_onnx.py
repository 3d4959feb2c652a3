"""ONNX models inspected: what is counted, and each finding with a model that has nothing else wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nybble.formats.onnx import open_onnx
from nybble.inspection.inspection import Inspection
from nybble.inspection.onnx import inspect_onnx
from nybble.inspection.weights import OUTLIER_RATIO, without_numbers

onnx = pytest.importorskip("onnx")
FEATURES, TOKENS, BLOCK = 64, 96, 32


def quantised(
    name: str, source: str, outputs: int = FEATURES, target: str = "", bits: int = 4, **attributes: Any
) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    """A MatMulNBits and its weights."""
    block = attributes.get("block_size", BLOCK)
    blocks = -(-FEATURES // block)
    random = np.random.default_rng(len(name))
    codes = random.integers(0, 256, (outputs, blocks, block * bits // 8), np.uint8)
    scales = random.uniform(0.1, 1, outputs * blocks).astype(np.float32)
    settings = {"accuracy_level": 4, "block_size": BLOCK, "bits": bits, "K": FEATURES, "N": outputs} | attributes
    node = onnx.helper.make_node(
        "MatMulNBits",
        [source, f"{name}.codes", f"{name}.scales"],
        [target or f"{name}.out"],
        name=name,
        domain="com.microsoft",
        **{key: value for key, value in settings.items() if value is not None},
    )
    weights = [
        onnx.numpy_helper.from_array(codes, f"{name}.codes"),
        onnx.numpy_helper.from_array(scales, f"{name}.scales"),
    ]
    return node, weights


def model(*layers: dict[str, Any], head: str = "logits", embedding_bits: int | None = None) -> onnx.ModelProto:
    """Embedding → norm weight (only there) → one linear a layer → head."""
    nodes, weights = [], []
    if embedding_bits is None:
        table = np.random.default_rng(1).normal(size=(TOKENS, FEATURES)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(table, "embed"))
        nodes.append(onnx.helper.make_node("Gather", ["embed", "input_ids"], ["x0"], name="/embed"))
    else:
        codes = np.ones((TOKENS, FEATURES), np.uint8)
        scales = np.ones((TOKENS, FEATURES // BLOCK), np.float32)
        weights += [onnx.numpy_helper.from_array(codes, "embed"), onnx.numpy_helper.from_array(scales, "embed.scales")]
        nodes.append(
            onnx.helper.make_node(
                "GatherBlockQuantized",
                ["embed", "input_ids", "embed.scales"],
                ["x0"],
                name="/embed",
                domain="com.microsoft",
                bits=embedding_bits,
                block_size=BLOCK,
            )
        )
    for place, layer in enumerate(layers):
        node, own = quantised(f"/layers.{place}/up", f"x{place}", target=f"x{place + 1}", **layer)
        nodes.append(node)
        weights += own
    node, own = quantised("/lm_head", f"x{len(layers)}", outputs=TOKENS, target=head)
    norm = onnx.numpy_helper.from_array(np.ones(FEATURES, np.float32), "norm.weight")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [*nodes, node],
        "toy",
        [value("input_ids", onnx.TensorProto.INT64, ["b", "s"])],
        [value(head, onnx.TensorProto.FLOAT, ["b", "s", TOKENS])],
        [*weights, *own, norm],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])


def inspected(folder: Path, proto: onnx.ModelProto) -> Inspection:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return inspect_onnx(open_onnx(path), "toy")


def replaced(proto: onnx.ModelProto, name: str, change: Any) -> onnx.ModelProto:
    """``proto`` with ``change`` done to the array of an initialiser."""
    for tensor in proto.graph.initializer:
        if tensor.name == name:
            array = onnx.numpy_helper.to_array(tensor).copy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(change(array), name))
    return proto


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("layer15.up", "layer*.up"),
        ("layer3.query + layer3.key", "layer*.query + layer*.key"),
        ("/model/layers.12/mlp/up_proj/MatMul_Q4", "/model/layers.*/mlp/up_proj/MatMul_Q4"),
        ("blk.7.ffn_up.weight", "blk.*.ffn_up.weight"),
        ("layer 4 · gate", "layer * · gate"),
        ("block2/attention", "block*/attention"),
        ("layers.1.w1", "layers.*.w1"),
        ("h.3.mlp.fc2", "h.*.mlp.fc2"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    """Layers are alike, whatever the exporter calls them; w1 and w3 are not."""
    assert without_numbers(name) == kind


def test_nothing_odd(tmp_path: Path) -> None:
    found = inspected(tmp_path, model({}, {}))
    assert found.findings == ()
    up, head = found.linears
    assert (up.name, up.count, up.features, up.outputs) == ("/layers.*/up", 2, FEATURES, FEATURES)
    assert (up.bits, up.block, up.zero_points, up.accuracy_level) == (4, BLOCK, "symmetric", 4)
    assert (head.name, head.count, head.outputs) == ("/lm_head", 1, TOKENS)
    assert found.parameters == 2 * FEATURES**2 + 2 * TOKENS * FEATURES + FEATURES
    assert (found.architecture, found.tied) == ("toy", False)
    assert found.embedding == f"Gather, FLOAT, {TOKENS} tokens x {FEATURES}"
    assert found.metadata["opset ai.onnx"] == "21"


def test_float_and_dequantised_linears(tmp_path: Path) -> None:
    proto = model()
    codes = onnx.helper.make_tensor("q", onnx.TensorProto.INT4, (FEATURES, 8), [1] * FEATURES * 8)
    weights = [
        onnx.numpy_helper.from_array(np.ones((FEATURES, 8), np.float16), "w"),
        onnx.numpy_helper.from_array(np.ones((FEATURES // BLOCK, 8), np.float32), "s"),
        codes,
    ]
    proto.graph.initializer.extend(weights)
    proto.graph.node.extend(
        [
            onnx.helper.make_node("MatMul", ["x0", "w"], ["a"], name="float"),
            onnx.helper.make_node("DequantizeLinear", ["q", "s"], ["dq"], block_size=BLOCK, axis=0),
            onnx.helper.make_node("MatMul", ["x0", "dq"], ["b"], name="qdq"),
        ]
    )
    kinds = {kind.name: kind for kind in inspected(tmp_path, proto).linears}
    assert (kinds["float"].storage, kinds["float"].bits, kinds["float"].block) == ("FLOAT16", 16, None)
    assert (kinds["qdq"].bits, kinds["qdq"].block, kinds["qdq"].outputs) == (4, BLOCK, 8)


@pytest.mark.parametrize(
    ("proto", "name", "where", "mend"),
    [
        (model({"accuracy_level": None}), "low accuracy_level", "/layers.0/up", "nybble patch"),
        (model({"accuracy_level": 1}), "low accuracy_level", "/layers.0/up", "--accuracy-level 4"),
        (model({"block_size": 8}), "slow block size", "/layers.0/up", "blocks of 32"),
        (model({"block_size": 48}), "slow block size", "/layers.0/up", "blocks of 32"),
        (model({"block_size": 512}), "slow block size", "/layers.0/up", "blocks of 32"),
        (model({}, embedding_bits=4), "embedding of another width", "/embed", "export"),
        (model({}, head="hidden_states"), "missing head", "model.onnx", "exclude_lm_head"),
        (replaced(model({}), "norm.weight", np.zeros_like), "all zero", "norm.weight", "again"),
        (replaced(model({}), "/layers.0/up.scales", np.zeros_like), "all zero", "/layers.0/up.scales", "again"),
        (replaced(model({}), "/lm_head.codes", lambda a: np.full_like(a, 0x88)), "all zero", "/lm_head", "again"),
        (
            replaced(model({}), "/layers.0/up.scales", lambda a: np.where(a == a[3], np.float32(np.nan), a)),
            "non-finite weights",
            "/layers.0/up.scales",
            "again",
        ),
        (
            replaced(model({}), "norm.weight", lambda a: np.where(np.arange(a.size) == 5, np.float32(30), a)),
            "outlier channel",
            "norm.weight",
            "--accuracy-level 1",
        ),
    ],
)
def test_findings(tmp_path: Path, proto: onnx.ModelProto, name: str, where: str, mend: str) -> None:
    (finding,) = inspected(tmp_path, proto).findings
    assert (finding.name, finding.where) == (name, where)
    assert mend in finding.mend and finding.reason


def test_eight_bit_embedding_is_no_finding(tmp_path: Path) -> None:
    found = inspected(tmp_path, model({}, embedding_bits=8))
    assert found.findings == ()
    assert found.embedding == f"GatherBlockQuantized, 8 bits, blocks of {BLOCK}, {TOKENS} tokens x {FEATURES}"


def test_findings_of_many_layers_are_one(tmp_path: Path) -> None:
    (finding,) = inspected(tmp_path, model(*[{"accuracy_level": None}] * 5)).findings
    assert finding.where == "/layers.0/up and 4 more"


def test_tied(tmp_path: Path) -> None:
    proto = model(embedding_bits=8)
    head = proto.graph.node[-1]
    head.input[1], head.input[2] = "embed", "embed.scales"
    assert inspected(tmp_path, proto).tied is True


def test_the_outlier_ratio_is_what_it_says() -> None:
    """One channel of OUTLIER_RATIO among ones: rounding to int8 with its scale costs them 5 % of their size."""
    random = np.random.default_rng(2)
    ones = random.normal(size=100_000)
    ones /= np.sqrt(np.mean(ones**2))
    step = OUTLIER_RATIO / 127
    rounded = np.round(ones / step) * step
    assert np.sqrt(np.mean((rounded - ones) ** 2)) == pytest.approx(0.05, rel=0.02)
