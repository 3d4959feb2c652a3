"""Decoders in every form that builders write, against ONNX Runtime; and graphs that must be refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nybble.errors import NybbleError, UnsupportedFeature
from nybble.formats.open import open_checkpoint
from nybble.graph import reference
from nybble.graph.graph import Graph
from nybble.graph.ops import Linear
from nybble.models.build import build_graph

from .onnx_decoder import Decoder, Form, onnx, runtime_logits, write_decoder

TOKENS = [5, 71, 3, 3, 40, 12, 79, 0, 33]

FORMS = {
    "packed": Form(),
    "separate": Form(attention="separate"),
    "rotary outside": Form(attention="outside"),
    "multi-head": Form(attention="multi_head"),
    "adds and norms": Form(norm="fused"),
    "spelled norms": Form(norm="spelled", attention="separate"),
    "head norms packed": Form(head_norms=True),
    "head norms separate": Form(head_norms=True, attention="separate"),
    "biases": Form(bias=True),
    "biases separate": Form(bias=True, attention="separate"),
    "biases inside": Form(bias=True, bias_inside=True, attention="separate"),
    "quick gelu": Form(gate="quick"),
    "last token only": Form(pruned=True),
    "shared embedding": Form(head="shared"),
    "shared embedding with zero points": Form(head="shared", zero_points="packed"),
    "shared embedding of 8 bits": Form(head="shared", bits=8),
    "decoded before use": Form(linear="qdq"),
    "floats": Form(linear="float"),
    "transposed floats": Form(linear="gemm"),
    "8 bits": Form(bits=8),
    "2 bits": Form(bits=2),
    "8 bits with zero points": Form(bits=8, zero_points="packed"),
    "blocks of 16": Form(block=16, zero_points="packed"),
    "blocks of 64": Form(block=64, zero_points="packed"),
    "blocks beyond K": Form(block=128, zero_points="packed"),
    "blocks of 256": Form(block=256),
    "one-dimensional": Form(flat=True, zero_points="packed"),
    "float zero points": Form(zero_points="float"),
    "another base": Form(rope_base=1e6),
}


def graph_of(path: Path) -> Graph:
    return build_graph(open_checkpoint(path))


def reference_logits(graph: Graph, ids: list[int]) -> np.ndarray:
    return reference.run(graph, ids, reference.ReferenceCache(graph, np.float32))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_same_logits_as_onnx_runtime(tmp_path: Path, form: Form) -> None:
    path = write_decoder(tmp_path / "model.onnx", form)
    try:
        expected = runtime_logits(path, TOKENS, form)
    except Exception as error:
        pytest.skip(f"this ONNX Runtime does not run the form: {str(error)[:80]}")
    found = reference_logits(graph_of(path), TOKENS)[-len(expected) :]
    # Both compute in at least fp32; the bound is that of a few dozen roundings, relative to the largest logit. Zero
    # points become fp16 offsets, which are rounded by up to 2^-11 of themselves.
    bound = 1e-3 if form.zero_points == "absent" else 1e-2
    assert np.abs(found - expected).max() < bound * np.abs(expected).max()
    if form.zero_points == "absent":
        assert np.sqrt(np.square(found - expected).mean() / np.square(expected).mean()) < 1e-4


def test_names_do_not_matter(tmp_path: Path) -> None:
    model = Decoder(Form()).model()
    for place, node in enumerate(model.graph.node):
        node.name = ["layer0 lm_head", "", "embed"][place % 3]
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    expected = graph_of(write_decoder(tmp_path / "same.onnx", Form()))
    found = graph_of(tmp_path / "model.onnx")
    assert np.array_equal(reference_logits(found, TOKENS), reference_logits(expected, TOKENS))
    assert len({op.label for op in found.ops}) == len(found.ops)


def test_a_shared_embedding_is_one_tensor(tmp_path: Path) -> None:
    graph = graph_of(write_decoder(tmp_path / "model.onnx", Form(head="shared")))
    assert sum(name.startswith("head.") for name in graph.tensors) == 1


def test_frequencies_are_those_of_the_base(tmp_path: Path) -> None:
    graph = graph_of(write_decoder(tmp_path / "model.onnx", Form(rope_base=130000.0)))
    assert np.array_equal(graph.inverse_frequencies, 130000.0 ** (-np.arange(8) / 8))


@pytest.mark.parametrize(("level", "floats"), [(None, False), (0, False), (1, True), (2, True), (3, True), (4, False)])
def test_the_accuracy_level_of_each_linear_is_kept(tmp_path: Path, level: int | None, floats: bool) -> None:
    graph = graph_of(write_decoder(tmp_path / "model.onnx", Form(level=level)))
    assert {op.float_activations for op in graph.ops if isinstance(op, Linear)} == {floats}


def changed(change: str) -> Any:
    """A decoder with one thing that nybble does not run, or that is wrong."""
    form = Form(layers=1)
    model = Decoder(form).model()
    nodes = {node.op_type: node for node in reversed(model.graph.node)}
    attention, linear = nodes["GroupQueryAttention"], nodes["MatMulNBits"]
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def attribute(node: Any, name: str, value: object) -> None:
        for old in [old for old in node.attribute if old.name == name]:
            node.attribute.remove(old)
        node.attribute.append(onnx.helper.make_attribute(name, value))

    match change:
        case "window":
            attribute(attention, "local_window_size", 4)
        case "softcap":
            attribute(attention, "softcap", 30.0)
        case "interleaved":
            attribute(attention, "rotary_interleaved", 1)
        case "unknown attribute":
            attribute(attention, "colour", 1)
        case "g_idx":
            linear.input.extend(["", linear.input[1]])
        case "block of 8":
            attribute(linear, "block_size", 8)
        case "3 bits":
            attribute(linear, "bits", 3)
        case "K of another":
            attribute(linear, "K", 63)
        case "codes missing":
            codes = tensors["layer0.qkv.codes"]
            codes.CopyFrom(onnx.numpy_helper.from_array(np.zeros((1, 1, 16), np.uint8), codes.name))
        case "zero points of another type":
            linear.input.append("layer0.qkv.codes.other")
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(np.zeros((128, 2), np.float16), "layer0.qkv.codes.other")
            )
        case "unknown op":
            nodes["Sigmoid"].op_type = "Erf"
        case "unknown domain":
            nodes["Sigmoid"].domain = "my.ops"
        case "a subgraph":
            nodes["Sigmoid"].attribute.append(onnx.helper.make_attribute("body", model.graph))
        case "a cycle":
            nodes["Sigmoid"].input[0] = "logits"
        case "an input of nobody":
            nodes["Sigmoid"].input[0] = "nobody"
        case "written twice":
            nodes["Sigmoid"].output[0] = nodes["Gather"].output[0]
        case "lengths of another":
            nodes["Sub"].op_type = "Add"
        case "swapped tables":
            attention.input[7], attention.input[8] = attention.input[8], attention.input[7]
        case "scaled tables":
            for name in ("cos", "sin"):
                array = onnx.numpy_helper.to_array(tensors[name]) * np.float32(1.5)
                tensors[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
        case "tables that change their speed":
            for name in ("cos", "sin"):
                array = onnx.numpy_helper.to_array(tensors[name]).copy()
                array[40:] = array[39:-1]
                tensors[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
        case "transposed activations":
            node = onnx.helper.make_node("Transpose", [attention.input[0]], ["turned"], perm=[2, 1, 0])
            place = list(model.graph.node).index(attention)
            model.graph.node.insert(place, node)
            model.graph.node[place + 1].input[0] = "turned"
        case "embeddings as input":
            model.graph.input[0].name = "inputs_embeds"
        case "no logits":
            model.graph.output[0].name = "present.0.key"
        case "scaled logits":
            nodes["Identity"].op_type = "Mul"
            nodes["Identity"].input.append("one")
        case "nothing":
            del model.graph.node[:]
    return model


REFUSALS = {
    "window": "GroupQueryAttention.*last 4 tokens only",
    "softcap": "GroupQueryAttention.*softcap is 30.0",
    "interleaved": "GroupQueryAttention.*interleaved",
    "unknown attribute": "GroupQueryAttention.*'colour'",
    "g_idx": "MatMulNBits.*g_idx",
    "block of 8": "MatMulNBits.*block size is 8",
    "3 bits": "MatMulNBits.*3 bits",
    "K of another": "MatMulNBits.*has 64 features, its weight 63",
    "codes missing": "MatMulNBits.*has 16 bytes; 128 outputs of 64 features need 4096",
    "zero points of another type": "MatMulNBits.*expected UINT8, or FLOAT",
    "unknown op": "Erf.*does not know this op",
    "unknown domain": r"my\.ops::Sigmoid.*domain",
    "a subgraph": "Sigmoid.*graph of its own",
    "a cycle": "Sigmoid.*reads 'logits', which no input",
    "an input of nobody": "Sigmoid.*reads 'nobody'",
    "written twice": "Sigmoid.*written already",
    "lengths of another": "GroupQueryAttention.*lengths",
    "swapped tables": "fixed angle",
    "scaled tables": "scaled by 1\\.5",
    "tables that change their speed": "position 40",
    "transposed activations": "GroupQueryAttention",
    "embeddings as input": "inputs_embeds",
    "no logits": "none of the graph's outputs are logits|is a cache",
    "scaled logits": "Mul.*multiplies",
    "nothing": "written by no node",
}


@pytest.mark.parametrize("change", REFUSALS)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, change: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(changed(change).SerializeToString())
    with pytest.raises(NybbleError, match=REFUSALS[change]) as raised:
        graph_of(path)
    assert str(raised.value).startswith(str(path))
    assert str(raised.value).isprintable()


def test_a_mask_that_hides_the_distant_past_is_refused(tmp_path: Path) -> None:
    """A window shows only over a context longer than it."""
    form = Form(attention="multi_head", layers=1)
    for window, fits in ((CONTEXT_AND_MORE, True), (20, False)):
        path = tmp_path / f"{window}.onnx"
        path.write_bytes(masked(form, window).SerializeToString())
        if fits:
            assert graph_of(path).layers == 1
        else:
            with pytest.raises(UnsupportedFeature, match="not the causal mask"):
                graph_of(path)


CONTEXT_AND_MORE = 1000


def masked(form: Form, window: int) -> Any:
    decoder = Decoder(replace(form))
    model = decoder.model()
    zero, one = (onnx.numpy_helper.from_array(np.int64(number), f"number{number}") for number in (0, 1))
    step = onnx.helper.make_node("Shape", ["input_ids"], ["step"], start=1, end=2)
    past = onnx.helper.make_node("Shape", ["past.0.key"], ["before"], start=2, end=3)
    names = {"w": np.int64(window), "low": np.float32(-65504), "high": np.float32(0), "axes": np.array([0])}
    model.graph.initializer.extend([zero, one, *(onnx.numpy_helper.from_array(v, k) for k, v in names.items())])
    node = onnx.helper.make_node
    extra = [
        step,
        past,
        node("Add", ["step", "before"], ["all1"]),
        node("Squeeze", ["all1", "axes"], ["all"]),
        node("Squeeze", ["before", "axes"], ["first"]),
        node("Range", ["number0", "all", "number1"], ["columns"]),
        node("Range", ["first", "all", "number1"], ["rows"]),
        node("Unsqueeze", ["rows", "axis1"], ["tall"]),
        node("LessOrEqual", ["columns", "tall"], ["seen"]),
        node("Sub", ["tall", "w"], ["edge"]),
        node("Greater", ["columns", "edge"], ["near"]),
        node("And", ["seen", "near"], ["both"]),
        node("Where", ["both", "high", "low"], ["flat"]),
        node("Unsqueeze", ["flat", "axes01"], ["bias"]),
    ]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axis1"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 1]), "axes01"))
    for place, added in enumerate(extra):
        model.graph.node.insert(place, added)
    attention = next(one for one in model.graph.node if one.op_type == "MultiHeadAttention")
    attention.input.extend(["", "", "bias"])
    return model
