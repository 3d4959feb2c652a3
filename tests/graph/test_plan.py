"""Guards against: plans that promise other sizes than packing takes, or kernels that do not fit the buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from nybble import _native
from nybble.errors import KernelUnavailable, ModelFileError, UnsupportedFeature
from nybble.graph.compile import compile_plan, pack_matrices
from nybble.graph.dispatch import Accuracy, choose_linear_kernel
from nybble.graph.graph import Graph
from nybble.graph.ops import Embed, Linear, Rope
from nybble.graph.plan import ALIGNMENT, plan
from nybble.models.build import build_graph
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor
from tests.models.tiny import TinyModel, tiny_checkpoint
from tests.quant.stored import random_tensor, set_factor

from .small import embedded, random_graphs, tensor

ISAS = _native.available_isas()
POOL = _native.ThreadPool(1)


def tiny(storages: Mapping[str, str], **configuration: object) -> Graph:
    """A tiny model whose matrices are stored as ``storages`` says by part (``attn_q``), the others as F32."""
    graph = build_graph(tiny_checkpoint(TinyModel(**configuration)))  # type: ignore[arg-type]

    def stored(name: str, old: Tensor) -> Tensor:
        storage = next((storage for part, storage in storages.items() if f"{part}.weight" in name), "F32")
        if storage.endswith("_K"):  # which the gguf package cannot quantise
            return replace(random_tensor(StorageType[storage], old.shape, 0), name=name)
        return tensor(name, old.rows.view("<f4").reshape(old.shape), storage)

    return replace(graph, tensors={name: stored(name, old) for name, old in graph.tensors.items()})


@settings(max_examples=40)
@given(
    random_graphs(storages=("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1")),
    st.sampled_from(Accuracy),
    st.sampled_from(ISAS),
)
def test_a_plan_is_what_packing_takes(graph: Graph, accuracy: Accuracy, isa: str) -> None:
    try:
        planned = plan(graph, accuracy, isa)
    except UnsupportedFeature:
        reject()  # a RoPE that nothing fuses
    linears = [op for op in planned.graph.ops if isinstance(op, Linear)]
    tables = [(op.table,) for op in planned.graph.ops if isinstance(op, Embed)]
    assert set(planned.matrices) == {*tables, *(op.weights for op in linears)}
    end = 0
    for stack, matrix in planned.matrices.items():
        assert (matrix.tensors, matrix.offset % ALIGNMENT) == (stack, 0)
        assert matrix.offset >= end
        end = matrix.offset + matrix.bytes
    assert end <= planned.weight_bytes
    assert planned.weight_bytes == sum(
        -(-matrix.bytes // ALIGNMENT) * ALIGNMENT for matrix in planned.matrices.values()
    )

    memory = _native.WeightMemory(planned.weight_bytes)
    packed = pack_matrices(planned, memory, POOL, lambda: None, lambda packed_bytes: None)
    for stack, matrix in planned.matrices.items():
        assert (packed[stack].n, packed[stack].k, packed[stack].bytes) == (matrix.n, matrix.k, matrix.bytes)
        for name in stack:
            form = _native.packed_format(planned.graph.tensors[name].storage.name)
            assert form == (matrix.weights, matrix.block, matrix.has_offsets)

    for op in linears:
        matrix, kernel = planned.matrices[op.weights], planned.choices[op.label].kernel
        storage = planned.graph.tensors[op.weights[0]].storage.name
        assert matrix.layout == kernel.layout
        assert planned.choices[op.label] == choose_linear_kernel(storage, accuracy, isa)
        quantised = planned.graph.buffers[op.input].quantised_block
        assert quantised == (matrix.block if kernel.activations == "int8" else None)
    assert set(planned.choices) == {op.label for op in linears}


def test_weights_of_one_packed_form_are_stacked_and_others_kept_apart() -> None:
    graph = tiny({"attn_q": "Q4_0", "attn_k": "Q4_0", "attn_v": "Q8_0", "ffn_gate": "Q5_0", "ffn_up": "Q8_0"}, layers=1)
    stacks = set(plan(graph, Accuracy.INT8, ISAS[0]).matrices)
    assert ("blk.0.attn_q.weight", "blk.0.attn_k.weight") in stacks
    assert ("blk.0.attn_v.weight",) in stacks
    assert ("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight") in stacks  # both 8-bit, blocks of 32


def test_a_tied_embedding_is_packed_once() -> None:
    graph = tiny({"token_embd": "Q8_0"}, layers=1, tied=True)
    planned = plan(graph, Accuracy.INT8, ISAS[0])
    table = planned.matrices[("token_embd.weight",)]
    assert table.bytes == _native.packed_bytes(StorageType.Q8_0.name, graph.vocabulary, table.k)
    assert [stack for stack in planned.matrices if "token_embd.weight" in stack] == [("token_embd.weight",)]


def test_accuracy_f32_rounds_no_activation() -> None:
    graph = tiny({"attn_q": "Q4_0", "ffn_down": "Q8_0"})
    rounded = plan(graph, Accuracy.INT8, "portable")
    assert any(buffer.quantised_block is not None for buffer in rounded.graph.buffers.values())
    kept = plan(graph, Accuracy.F32, "portable")
    assert all(buffer.quantised_block is None for buffer in kept.graph.buffers.values())
    assert {choice.kernel.activations for choice in kept.choices.values()} == {"f32"}


def test_only_fp32_activations_keep_fp32_scales() -> None:
    """And only where fp16 would round them: not of Q4_0, nor of what is shared with rounded activations."""
    storages = {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "ffn_up": "Q4_0", "token_embd": "Q6_K"}
    graph = tiny(storages, layers=1, tied=True, hidden=256, heads=4, kv_heads=2, head_dim=64, feed_forward=256)

    def wide(accuracy: Accuracy, of: Graph = graph) -> set[str]:
        planned = plan(of, accuracy, "portable")
        marked = {name for name, tensor in planned.graph.tensors.items() if tensor.wide_scales}
        assert marked == {name for stack, matrix in planned.matrices.items() if matrix.wide_scales for name in stack}
        return {name.removeprefix("blk.0.").removesuffix(".weight") for name in marked}

    assert wide(Accuracy.INT8) == set()
    assert wide(Accuracy.F32) == {"attn_q", "attn_k", "attn_v", "token_embd"}
    ops = [replace(op, float_activations=True) if isinstance(op, Linear) else op for op in graph.ops]
    assert wide(Accuracy.INT8, replace(graph, ops=tuple(ops))) == {"attn_q", "attn_k", "attn_v", "token_embd"}
    untied = tiny({"token_embd": "Q6_K", "output": "Q4_0"}, layers=1, hidden=256, heads=4, kv_heads=2, head_dim=64)
    assert wide(Accuracy.F32, untied) == {"token_embd"}


def test_pages_are_released_after_each_matrix_and_op() -> None:
    graph = tiny({"attn_q": "Q4_0"}, layers=1)
    planned = plan(graph, Accuracy.INT8, ISAS[0])
    events: list[str | int] = []
    compile_plan(planned, POOL, lambda: events.append("release"), events.append)
    packing = [event for matrix in planned.matrices.values() for event in ("release", matrix.bytes)]
    assert events == [*packing, *["release"] * len(planned.graph.ops)]


def test_a_scale_that_is_not_finite_names_tensor_and_row() -> None:
    weights = [replace(random_tensor(StorageType.Q4_1, (3, 32), seed), name=f"w{seed}") for seed in (0, 1)]
    weights[1] = replace(set_factor(weights[1], 2, 0, 2, np.nan), name="w1")
    linear = Linear("stacked", "x", ("w0", "w1"), "y")
    graph = embedded(32, linear, widths={"y": 6}, tensors=weights, logits="y")
    with pytest.raises(ModelFileError) as raised:
        compile_plan(plan(graph, Accuracy.INT8, ISAS[0]), POOL)
    assert str(raised.value).startswith("toy.gguf: w1 row 2: a block's scale or offset is not finite")


def test_weights_without_a_kernel_are_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "linear_kernels", lambda: [("a", "portable", "w4", "int8", "panel32")])
    with pytest.raises(KernelUnavailable, match="f32 weights on portable"):
        plan(tiny({}), Accuracy.INT8, "portable")


def test_what_native_programs_cannot_run_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against an internal error late in compiling when no pass fused a RoPE with its KV append."""
    monkeypatch.setattr("nybble.graph.plan.lower", lambda graph, rounding_of: graph)
    graph = tiny({})
    first = next(op for op in graph.ops if isinstance(op, Rope))
    with pytest.raises(UnsupportedFeature, match=first.label):
        plan(graph, Accuracy.INT8, "portable")
