"""Guards against: an oracle that is wrong. Every word is compared with its definition, written as plain loops."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from nybble.errors import InvalidParameter
from nybble.graph.graph import Buffer
from nybble.graph.ops import (
    Add,
    Attention,
    KVAppend,
    Linear,
    Quantise,
    RMSNorm,
    Rope,
    RotateAppend,
    SelectOutputs,
    SwiGLU,
)
from nybble.graph.reference import ReferenceCache, ReferenceWeights, fake_quantise, quantise_rows, run
from nybble.quant.blocks import dequantise
from nybble.quant.matrix import to_matrix

from .small import HEAD_DIM, KEY_WIDTH, embedded, tensor

RANDOM = np.random.default_rng(7)
TOKENS = [3, 0, 23, 3]


def values_of(graph, tokens=TOKENS, dtype=np.float64):
    return run(graph, tokens, ReferenceCache(graph), dtype=dtype)


def x_of(graph, tokens=TOKENS):
    return dequantise(graph.tensors["table"])[tokens].astype(np.float64)


def test_embed_and_linear_with_bias_and_residual() -> None:
    first, second = RANDOM.normal(size=(3, 8)), RANDOM.normal(size=(5, 8))
    tensors = [tensor("w1", first), tensor("w2", second), tensor("b1", np.arange(3)), tensor("b2", np.arange(5))]
    stacked = Linear("stacked", "x", ("w1", "w2"), "y", ("b1", "b2"))
    graph = embedded(8, stacked, widths={"y": 8}, tensors=tensors, logits="y")
    x = x_of(graph)
    weights = np.concatenate((first, second)).astype(np.float32)
    expected = [[math.fsum(w * v for w, v in zip(row, values, strict=True)) for row in weights] for values in x]
    expected = np.array(expected) + np.array([0, 1, 2, 0, 1, 2, 3, 4])
    np.testing.assert_allclose(values_of(graph), expected, rtol=1e-12)
    residual = Linear("stacked", "x", ("w1", "w2"), "y", ("b1", "b2"), residual="x")
    graph = embedded(8, residual, widths={"y": 8}, tensors=tensors, logits="y")
    np.testing.assert_allclose(values_of(graph), expected + x, rtol=1e-12)


@pytest.mark.parametrize("group", [2, 4, 8])
def test_rms_norm(group: int) -> None:
    weight = RANDOM.normal(size=group).astype(np.float32)
    norm = RMSNorm("norm", "x", "w", "y", 0.01, group)
    graph = embedded(8, norm, widths={"y": 8}, tensors=[tensor("w", weight)], logits="y")
    for row, found in zip(x_of(graph), values_of(graph), strict=True):
        for feature in range(8):
            start = feature // group * group
            mean = sum(value**2 for value in row[start : start + group]) / group
            expected = row[feature] / math.sqrt(mean + 0.01) * weight[feature % group]
            assert found[feature] == pytest.approx(expected, rel=1e-12)


def test_swiglu_and_add() -> None:
    ops = (SwiGLU("activation", "x", "x", "y"), Add("sum", "x", "y", "z"))
    graph = embedded(8, *ops, widths={"y": 8, "z": 8}, logits="z")
    expected = [[v / (1 + math.exp(-v)) * v + v for v in row] for row in x_of(graph)]
    np.testing.assert_allclose(values_of(graph), expected, rtol=1e-12)


def test_swiglu_of_huge_values() -> None:
    """Guards against overflow in exp: silu(-1000) is 0, silu(1000) is 1000, in fp32 too, without a warning."""
    table = tensor("table", np.array([[-1000.0, 1000.0]]))
    graph = embedded(2, SwiGLU("activation", "x", "x", "y"), widths={"y": 2}, tensors=[table], logits="y")
    np.testing.assert_array_equal(values_of(graph, [0], np.float32), [[0.0, 1e6]])


def attention_graph(heads: int, **changes):
    width = heads * HEAD_DIM
    tensors = [
        tensor("wk", RANDOM.normal(size=(KEY_WIDTH, width))),
        tensor("wv", RANDOM.normal(size=(KEY_WIDTH, width))),
    ]
    ops = (
        Linear("key", "x", ("wk",), "k"),
        Linear("value", "x", ("wv",), "v"),
        KVAppend("append", 0, "k", "v"),
        Attention("attention", 0, "x", "y", heads, 2, HEAD_DIM, 0.1),
    )
    widths = {"k": KEY_WIDTH, "v": KEY_WIDTH, "y": width}
    return embedded(width, *ops, widths=widths, tensors=tensors, layers=1, logits="y", **changes)


@pytest.mark.parametrize("heads", [2, 6])
def test_attention_is_causal_and_grouped_and_rounds_the_cache(heads: int) -> None:
    graph = attention_graph(heads)
    cache = ReferenceCache(graph)
    found = np.concatenate([run(graph, TOKENS[:1], cache), run(graph, TOKENS[1:], cache)])
    x = x_of(graph)
    key, value = (x @ dequantise(graph.tensors[name]).astype(np.float64).T for name in ("wk", "wv"))
    key, value = key.astype(np.float16).astype(np.float64), value.astype(np.float16).astype(np.float64)
    assert cache.keys[0].dtype == np.float16
    for row in range(len(TOKENS)):
        for head in range(heads):
            shared = head // (heads // 2) * HEAD_DIM
            query = x[row, head * HEAD_DIM : (head + 1) * HEAD_DIM]
            scores = [0.1 * float(query @ key[at, shared : shared + HEAD_DIM]) for at in range(row + 1)]
            weights = [math.exp(score - max(scores)) for score in scores]
            expected = sum(w * value[at, shared : shared + HEAD_DIM] for at, w in enumerate(weights)) / sum(weights)
            np.testing.assert_allclose(found[row, head * HEAD_DIM : (head + 1) * HEAD_DIM], expected, rtol=1e-10)


def test_attention_with_huge_scores() -> None:
    """Guards against overflow in the softmax: a score of 100,000 takes all the weight, in fp32 too."""
    table = tensor("table", np.repeat([[400.0], [300.0]], KEY_WIDTH, axis=1))
    ops = (KVAppend("append", 0, "x", "x"), Attention("attention", 0, "x", "y", 2, 2, HEAD_DIM, 0.1))
    graph = embedded(KEY_WIDTH, *ops, widths={"y": KEY_WIDTH}, tensors=[table], layers=1, logits="y")
    expected = np.full((2, KEY_WIDTH), 400.0)
    np.testing.assert_array_equal(values_of(graph, [0, 1], np.float32), expected)


def test_rotate_append_is_norm_rope_and_append() -> None:
    tensors = [tensor("qn", RANDOM.normal(size=HEAD_DIM)), tensor("kn", RANDOM.normal(size=HEAD_DIM))]
    heads = (2, 2, HEAD_DIM, 0.25)
    plain = (
        RMSNorm("query norm", "x", "qn", "q", 0.1, HEAD_DIM),
        RMSNorm("key norm", "x", "kn", "k", 0.1, HEAD_DIM),
        Rope("query rotation", "q", "rq", HEAD_DIM),
        Rope("key rotation", "k", "rk", HEAD_DIM),
        KVAppend("append", 0, "rk", "x"),
        Attention("attention", 0, "rq", "y", *heads),
    )
    names = dict.fromkeys(("q", "k", "rq", "rk", "y"), KEY_WIDTH)
    fused = (
        RotateAppend("fused", 0, "x", "x", "x", "rq", HEAD_DIM, "qn", "kn", 0.1),
        Attention("attention", 0, "rq", "y", *heads),
    )
    before = embedded(KEY_WIDTH, *plain, widths=names, tensors=tensors, layers=1, logits="y")
    after = embedded(
        KEY_WIDTH, *fused, widths=dict.fromkeys(("rq", "y"), KEY_WIDTH), tensors=tensors, layers=1, logits="y"
    )
    np.testing.assert_array_equal(values_of(after), values_of(before))


def test_select_outputs_keeps_the_rows_asked_for() -> None:
    select = SelectOutputs("rows", "x", "y")
    graph = embedded(8, select, widths={"y": Buffer(8, per_output=True)}, logits="y")
    for outputs in ([3], [2, 0], [1, 1], []):
        found = run(graph, TOKENS, ReferenceCache(graph), outputs)
        np.testing.assert_array_equal(found, x_of(graph)[outputs])
    np.testing.assert_array_equal(values_of(graph), x_of(graph))


def test_outputs_select_rows_without_the_op_too() -> None:
    graph = embedded(8, Add("sum", "x", "x", "y"), widths={"y": 8}, logits="y")
    np.testing.assert_array_equal(run(graph, TOKENS, ReferenceCache(graph), [2, 0]), 2 * x_of(graph)[[2, 0]])


def test_views_read_their_part_of_the_parent() -> None:
    parts = {"y": 8, "left": Buffer(3, parent="y"), "right": Buffer(3, parent="y", offset=5), "z": 3}
    identity = tensor("w", np.eye(8))
    ops = (Linear("identity", "x", ("w",), "y"), Add("sum", "left", "right", "z"))
    graph = embedded(8, *ops, widths=parts, tensors=[identity], logits="z")
    x = x_of(graph)
    np.testing.assert_allclose(values_of(graph), x[:, :3] + x[:, 5:], rtol=1e-12)


def test_quantised_buffers_hold_rounded_values() -> None:
    identity = tensor("w", np.eye(8))
    ops = (Quantise("codes", "x", "q"), Linear("identity", "q", ("w",), "y"))
    graph = embedded(8, *ops, widths={"q": Buffer(8, quantised_block=4), "y": 8}, tensors=[identity], logits="y")
    np.testing.assert_array_equal(values_of(graph), fake_quantise(x_of(graph)))


@pytest.mark.parametrize("storage", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_weights_have_the_values_their_storage_gives(storage: str) -> None:
    weight = tensor("w", RANDOM.normal(size=(5, 64)), storage)
    graph = embedded(64, Linear("linear", "x", ("w",), "y"), widths={"y": 5}, tensors=[weight], logits="y")
    exact = dequantise(weight).astype(np.float64) if weight.storage.is_float else to_matrix(weight).dequantise()
    np.testing.assert_allclose(values_of(graph), x_of(graph) @ exact.T, rtol=1e-11, atol=1e-12)


def test_embedding_decodes_only_the_rows_it_needs() -> None:
    """Guards against decoding a table of 150,000 rows for each token."""
    table = tensor("table", np.zeros((20000, 64)), "Q8_0")
    graph = embedded(64, Add("sum", "x", "x", "y"), widths={"y": 64}, tensors=[table], logits="y")
    tracemalloc.start()
    values_of(graph, [0, 19999])
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_weights_are_decoded_once_and_shared() -> None:
    weights, weight = ReferenceWeights(), tensor("w", RANDOM.normal(size=(5, 8)))
    float64, float32 = np.dtype(np.float64), np.dtype(np.float32)
    assert weights(weight, float64) is weights(weight, float64)
    assert weights(weight, float32).dtype == np.float32


def test_single_precision_follows_double() -> None:
    graph = attention_graph(6)
    found = values_of(graph, dtype=np.float32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, values_of(graph), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("tokens", "outputs"), [([], None), ([24], None), ([-1], None), ([1, 2], [2]), ([1, 2], [-1])], ids=str
)
def test_bad_steps_are_refused_and_leave_the_cache_as_it_was(tokens, outputs) -> None:
    graph = attention_graph(2)
    cache = ReferenceCache(graph)
    run(graph, [1, 2], cache)
    with pytest.raises(InvalidParameter):
        run(graph, tokens, cache, outputs)
    assert cache.length == 2
    np.testing.assert_array_equal(run(graph, [5], cache), values_of(graph, [1, 2, 5])[2:])


@pytest.mark.parametrize("length", [-1, 3])
def test_truncating_to_what_is_not_there(length: int) -> None:
    cache = ReferenceCache(attention_graph(2))
    with pytest.raises(InvalidParameter):
        cache.truncate(length)


def test_quantisation_is_that_of_each_group_alone() -> None:
    random = np.random.default_rng(0)
    for width in (1, 5, 127, 128, 129, 300):
        values = random.normal(size=(4, width)) * 10.0 ** random.integers(-6, 6, (4, 1))
        values[random.random(values.shape) < 0.02] *= 30
        values[0] = 0
        codes, scales = quantise_rows(values)
        for row in range(values.shape[0]):
            for at in range(0, width, 128):
                run_of = values[row, at : at + 128]
                scale = max(abs(run_of)) / 127
                assert scales[row, at // 128] == scale
                expected = [0 if scale == 0 else max(-127, min(127, round(value / scale))) for value in run_of]
                assert codes[row, at : at + 128].tolist() == expected
        rounded = fake_quantise(values)
        assert rounded.shape == values.shape
        bound = np.repeat(scales, 128, axis=1)[:, :width] / 2
        assert (np.abs(rounded - values) <= bound * (1 + 1e-9)).all()


def test_quantisation_rounds_ties_to_even() -> None:
    codes, scales = quantise_rows(np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]]))
    assert scales.tolist() == [[1.0]] and codes.tolist() == [[127, 0, 2, 2, 0, -2]]


def test_a_nan_activation_stays_visible() -> None:
    """Guards against NaN turning into a plausible code."""
    assert np.isnan(fake_quantise(np.array([[1.0, np.nan, 2.0]]))).any()
