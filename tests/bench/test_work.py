"""Ceilings by hand, and the work of real plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from nybble import _native
from nybble.bench.cases import Case
from nybble.bench.work import LinearWork, Work, steps, work_of
from nybble.engine.loading import plan_file
from nybble.graph.dispatch import Accuracy
from tests.models.tiny import TinyModel, tiny_gguf

WORK = Work(LinearWork(800, 1000, 0), LinearWork(200, 300, 0), 5.0)
SLOW_MEMORY = {"read_bandwidth": 100.0, "int8_peak": 1e9, "fp32_peak": 1e9}
SLOW_ARITHMETIC = {"read_bandwidth": 1e9, "int8_peak": 10.0, "fp32_peak": 1.0}


def test_generation_bound_by_memory() -> None:
    """A step reads all weights once, however many sequences share it."""
    case = Case(0, 10, depth=4)
    assert WORK.seconds(case, SLOW_MEMORY, with_kv=False) == pytest.approx(10 * 1000 / 100)
    positions = sum(4 + step + 1 for step in range(10))
    assert WORK.seconds(case, SLOW_MEMORY, with_kv=True) == pytest.approx(10 * 1000 / 100 + 5 * positions / 100)
    batch = Case(0, 10, depth=4, batch=3)
    assert WORK.seconds(batch, SLOW_MEMORY, with_kv=False) == pytest.approx(10 * 1000 / 100)
    assert WORK.seconds(batch, SLOW_MEMORY, with_kv=True) == pytest.approx(10 * 1000 / 100 + 3 * 5 * positions / 100)
    assert WORK.weight_bytes(batch) == pytest.approx(1000 / 3)
    assert WORK.cache_bytes(batch) == pytest.approx(5 * positions / 10)
    assert WORK.bound(case, SLOW_MEMORY) == WORK.bound(batch, SLOW_MEMORY) == "memory"


def test_prompts_bound_by_arithmetic() -> None:
    """The head is computed for the last token only."""
    case = Case(700, 0, depth=4)
    assert WORK.seconds(case, SLOW_ARITHMETIC, with_kv=True) == pytest.approx((700 * 1000 + 300) / 10)
    assert WORK.products(case) == pytest.approx(1000 + 300 / 700)
    assert WORK.weight_bytes(case) == pytest.approx((2 * 800 + 200) / 700)
    assert WORK.bound(case, SLOW_ARITHMETIC) == "arithmetic"


def test_both() -> None:
    case = Case(8, 2)
    parts = Case(8, 0), Case(0, 2, depth=8)
    for ceilings in (SLOW_MEMORY, SLOW_ARITHMETIC):
        total = sum(WORK.seconds(part, ceilings, with_kv=True) for part in parts)
        assert WORK.seconds(case, ceilings, with_kv=True) == pytest.approx(total)


def test_each_step_by_what_bounds_it() -> None:
    """Guards against sums of times of which only the longer counts: 1 row is bound by memory, 512 by arithmetic."""
    ceilings = {"read_bandwidth": 100.0, "int8_peak": 1000.0, "fp32_peak": 1.0}
    work = Work(LinearWork(1000, 1000, 0), LinearWork(0, 0, 0), 0.0)
    assert work.seconds(Case(513, 0), ceilings, with_kv=False) == pytest.approx(512 + 10)


def test_activations_in_fp32() -> None:
    work = Work(LinearWork(0, 100, 50), LinearWork(0, 0, 0), 0.0)
    ceilings = {"read_bandwidth": 1.0, "int8_peak": 100.0, "fp32_peak": 10.0}
    assert work.seconds(Case(1, 0), ceilings, with_kv=False) == pytest.approx(1 + 5)


@pytest.mark.parametrize("case", [Case(512, 0), Case(513, 0), Case(1500, 7, 3), Case(0, 4, 2, 5)])
def test_steps_compute_every_token(case: Case) -> None:
    assert sum(step.rows * count for step, count in steps(case, 512)) == case.tokens
    assert (
        sum(step.outputs * count for step, count in steps(case, 512)) == bool(case.prompt) + case.generated * case.batch
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("accuracy", Accuracy)
def test_work_of_a_plan(tmp_path: Path, tied: bool, accuracy: Accuracy) -> None:
    """Guards against ceilings that forget a matrix, or count the embedding rows."""
    model = TinyModel(tied=tied)
    path = tiny_gguf(tmp_path / "tiny.gguf", storage="Q4_0", tied=tied)
    _, plan = plan_file(path, accuracy)
    work = work_of(plan)
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    of_layer = model.hidden * (2 * query + 2 * key) + 3 * model.hidden * model.feed_forward
    products = (work.body.int8_products, work.body.fp32_products)
    assert products[accuracy is Accuracy.F32] == model.layers * of_layer and sum(products) == model.layers * of_layer
    assert sum((work.head.int8_products, work.head.fp32_products)) == model.hidden * model.vocabulary
    head = "token_embd.weight" if tied else "output.weight"
    linears = [matrix for weights, matrix in plan.matrices.items() if weights != ("token_embd.weight",)]
    assert work.head.bytes == plan.matrices[(head,)].bytes
    assert work.body.bytes == sum(matrix.bytes for matrix in linears if matrix.tensors != (head,))
    shape = (model.layers, model.kv_heads, model.head_dim)
    assert work.kv_bytes == pytest.approx(_native.KVCache.bytes_for(*shape, 3200) / 3200)
