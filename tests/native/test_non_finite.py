"""Guards against: NaN or infinity that an op swallows, and a report that blames the wrong op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from nybble.graph.compile import compile_plan
from nybble.graph.dispatch import Accuracy
from nybble.graph.graph import Graph, tensors_read
from nybble.graph.plan import plan
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor
from tests.quant.stored import random_tensor, set_factor

from .programs import ISAS, OpProgram, float_tensor, pack, pool
from .test_decoder import decoder, new_cache

NAN, INF = np.nan, np.inf
ONES = np.ones((2, 32), np.float32)

Build = Callable[[OpProgram, str], int]
"""Adds ops, the one named "culprit" among them, and returns the view (32 wide) that becomes the logits."""


def spoilt(values: np.ndarray, value: float) -> np.ndarray:
    """A copy with ``value`` in place of its last element."""
    values = np.array(values, np.float32)
    values.reshape(-1)[-1] = value
    return values


def embed(value: float) -> Build:
    def build(program: OpProgram, isa: str) -> int:
        view = program.new(32)
        program.native.embed("culprit", pack(float_tensor(spoilt(ONES, value))), view)
        return view

    return build


def norm(x: float, weight: float) -> Build:
    def build(program: OpProgram, isa: str) -> int:
        (view,), output = program.given(x * ONES), program.new(32)
        program.native.rms_norm("culprit", view, spoilt(ONES[0], weight), output, 1e-5)
        return output

    return build


def linear(tensor: Tensor, x: float = 1.0, bias: float | None = None, residual: float | None = None) -> Build:
    def build(program: OpProgram, isa: str) -> int:
        input, added = program.given(x * ONES, spoilt(ONES, residual or 0.0))
        if not tensor.storage.is_float:
            codes = program.new(32, block=32)
            program.native.quantise("quantise", input, codes)
            input = codes
        weights = {StorageType.Q4_1: "w4_int8", StorageType.Q8_0: "w8_int8"}
        kernel = f"linear_{weights.get(tensor.storage, tensor.storage.name.lower() + '_f32')}_panel32_{isa}"
        output = program.new(32)
        biases = None if bias is None else spoilt(ONES[0], bias)
        added_view = None if residual is None else added
        program.native.linear("culprit", input, pack(tensor), kernel, output, biases, added_view)
        return output

    return build


def attention(
    label: str,
    query: float = 1.0,
    key: float = 1.0,
    one_key: float = 1.0,
    value: float = 1.0,
    norms: float | None = None,
) -> Build:
    """One head of 32; ``label`` is the culprit. ``one_key`` and ``value`` are one feature of one token."""

    def build(program: OpProgram, isa: str) -> int:
        names = {"append": "append", "attention": "attention", label: "culprit"}
        views = program.given(query * ONES, spoilt(key * ONES, one_key * key), spoilt(ONES, value))
        weights = None if norms is None else spoilt(ONES[0], norms)
        turned, output = program.new(32), program.new(32)
        program.native.rotate_append(names["append"], 0, *views, turned, None, weights, 1e-5)
        program.native.attention(names["attention"], 0, turned, output, 1, 1.0)
        return output

    return build


def swiglu(gate: float, up: float) -> Build:
    def build(program: OpProgram, isa: str) -> int:
        views, output = program.given(gate * ONES, up * ONES), program.new(32)
        program.native.swiglu("culprit", *views, output)
        return output

    return build


def add(left: float, right: float) -> Build:
    def build(program: OpProgram, isa: str) -> int:
        views, output = program.given(left * ONES, right * ONES), program.new(32)
        program.native.add("culprit", *views, output)
        return output

    return build


def quantised(storage: StorageType, scale: float) -> Tensor:
    return set_factor(random_tensor(storage, (32, 32), 0), 31, 0, 0, scale)


MATRIX = np.ones((32, 32), np.float32)
CASES: dict[str, Build] = {
    "NaN in an embedding": embed(NAN),
    "infinity in an embedding": embed(-INF),
    "NaN in a norm": norm(1, NAN),
    "infinity in a norm": norm(1, INF),
    "a norm whose squares overflow": norm(1e20, 1),
    "NaN in an F32 weight": linear(float_tensor(spoilt(MATRIX, NAN))),
    "infinity in an F16 weight": linear(float_tensor(spoilt(MATRIX, INF), StorageType.F16)),
    "NaN in a BF16 weight": linear(float_tensor(spoilt(MATRIX, NAN), StorageType.BF16)),
    "a weight that overflows": linear(float_tensor(3e37 * MATRIX)),
    "NaN in a bias": linear(float_tensor(MATRIX), bias=NAN),
    "infinity in a bias, int8": linear(random_tensor(StorageType.Q8_0, (32, 32), 0), bias=INF),
    "an int8 sum that overflows": linear(quantised(StorageType.Q4_1, 6e4), x=1e35),
    "an int8 sum that overflows in its residual": linear(quantised(StorageType.Q8_0, 1e4), x=3e31, residual=3.4e38),
    "a key beyond fp16": attention("append", key=1e5),
    "a value beyond fp16": attention("append", value=-1e5),
    "a key beyond fp16 that would score -infinity": attention("append", query=-1.0, one_key=1e5),
    "NaN in a key's norm": attention("append", norms=NAN),
    "scores that overflow": attention("attention", query=1e35, key=6e4),
    "a gate that overflows": swiglu(1e30, 1e30),
    "a sum that overflows": add(3e38, 3e38),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("build", CASES.values(), ids=CASES.keys())
def test_the_op_that_breaks_is_named(isa: str, build: Build) -> None:
    program = OpProgram(2, isa, 2, layers=1, head_dim=32)
    output = build(program, isa)
    program.outputs(output, 32)
    cache = program.cache()
    assert program.native.first_non_finite([0, 1], [(cache, 2)], [0, 1]) == "culprit"
    assert cache.length == 0
    assert not np.isfinite(program.run(cache=cache)).all()
    assert cache.length == 2


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("kv", "build", "culprit"),
    [
        ("bf16", attention("append", norms=NAN), "culprit"),
        ("int8", attention("append", norms=NAN), "culprit"),
        ("bf16", attention("append", value=-3.4e38), "culprit"),  # rounds to infinity
        ("int8", attention("append", value=-3.4e38), ""),
        ("bf16", attention("append", value=1e5), ""),
        ("fp32", attention("append", norms=NAN), "culprit"),
        ("fp32", attention("append", value=-3.4e38), ""),
    ],
)
def test_what_a_cache_cannot_hold_is_named(isa: str, kv: str, build: Build, culprit: str) -> None:
    program = OpProgram(2, isa, 2, layers=1, head_dim=32)
    program.outputs(build(program, isa), 32)
    cache = program.cache(kv=kv)
    assert program.native.first_non_finite([0, 1], [(cache, 2)], [0, 1]) == culprit
    assert np.isfinite(program.run(cache=cache)).all() == (culprit == "")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("row", [0, 1])
def test_quantising_hides_nothing(isa: str, value: float, row: int) -> None:
    """Even with scales and codes of 0 on the other side; rows beside it are untouched."""
    program = OpProgram(2, isa, head_dim=32)
    values = ONES.copy()
    values[row, 7] = value
    (view,), codes, output = program.given(values), program.new(32, block=32), program.new(32)
    tensor = replace(random_tensor(StorageType.Q8_0, (32, 32), 0), rows=np.zeros((32, 34), np.uint8))
    program.native.quantise("quantise", view, codes)
    program.native.linear("linear", codes, pack(tensor), f"linear_w8_int8_panel32_{isa}", output, None, None)
    program.outputs(output, 32)
    found = program.run()
    assert np.isnan(found[row]).all()
    assert not found[1 - row].any()


def spoil(graph: Graph, name: str) -> Graph:
    """``graph`` with one NaN in the middle of an F32 tensor."""
    old = graph.tensors[name]
    octets = old.rows.copy()
    octets.view("<f4")[len(octets) // 2, old.shape[-1] // 2] = NAN
    return replace(graph, tensors={**graph.tensors, name: replace(old, rows=octets)})


@pytest.mark.parametrize("isa", ISAS)
def test_in_a_model_the_op_that_reads_a_spoilt_tensor_is_named(isa: str) -> None:
    """Every F32 tensor of a small model some of whose matrices are quantised; the NaN reaches the logits."""
    graph = decoder()
    tokens = [graph.vocabulary // 2, 3, 7]  # the first is the embedding that is spoilt
    for name, tensor in graph.tensors.items():
        if tensor.storage is not StorageType.F32:
            continue
        planned = plan(spoil(graph, name), Accuracy.INT8, isa)
        program = compile_plan(planned, pool(2)).program
        (reader, *_) = [op.label for op in planned.graph.ops if name in tensors_read(op)]
        cache = new_cache(graph)
        assert program.first_non_finite(tokens, [(cache, 3)], [2, 0]) == reader, name
        logits = program.run(tokens, [(cache, 3)], [2, 0])
        assert np.isnan(logits[1]).any(), name
