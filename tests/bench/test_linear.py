"""One linear on its own: every kernel that reads its weights, measured with what belongs to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nybble import _native
from nybble.bench import linear
from nybble.bench.cases import Case
from nybble.bench.job import Job, Operation, WeightFormat
from nybble.bench.linear import LinearSubject, kernels_for
from nybble.bench.processes import run_worker
from nybble.bench.row import parse_work
from nybble.errors import InvalidParameter
from nybble.graph.dispatch import linear_kernels

ISAS = _native.available_isas()
FORMATS = [
    Operation(n, k, WeightFormat(bits, block, asymmetric))
    for n, k in ((33, 48), (64, 256))
    for bits, block in ((4, 16), (4, 32), (8, 256))
    for asymmetric in (False, True)
] + [Operation(33, 48, WeightFormat(16, 1))]


@pytest.fixture(autouse=True)
def few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MOST_COPIES", 3)
    monkeypatch.setattr(linear, "largest_cache", lambda machine: 1 << 16)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_kernel_that_reads_the_weights(bits: int) -> None:
    """Guards against kernels that are left out of the benchmark."""
    found = kernels_for(Operation(64, 64, WeightFormat(bits, 32)), ISAS)
    assert found == [kernel for kernel in linear_kernels() if kernel.weights == f"w{bits}" and kernel.isa in ISAS]
    assert {kernel.activations for kernel in found} == {"int8", "f32"}
    assert all(
        kernel.isa == "portable" for kernel in kernels_for(Operation(64, 64, WeightFormat(bits, 32)), ["portable"])
    )


def test_blocks_that_do_not_exist() -> None:
    with pytest.raises(InvalidParameter, match="blocks of 16"):
        kernels_for(Operation(64, 64, WeightFormat(4, 48)), ISAS)


@pytest.mark.parametrize("operation", FORMATS, ids=lambda operation: operation.name)
def test_samples(operation: Operation) -> None:
    for kernel in kernels_for(operation, ISAS):
        subject = LinearSubject(operation, kernel, 2)
        for rows in (1, 5):
            case = Case(rows, 0, is_operation=True)
            assert subject.refusal(case) is None
            subject.prepare(case)
            assert all(0 < subject.sample(case) < 1 for _ in range(2))
        work = parse_work(dict(subject.facts["work"]))
        products = (work.body.int8_products, work.body.fp32_products)
        assert products[kernel.activations == "f32"] == sum(products) == operation.n * operation.k
        stored = operation.n * operation.k * operation.weights.bits / 8
        assert stored < work.body.bytes < 4 * stored + 20_000
        assert work.weight_bytes(Case(1000, 0)) == work.body.bytes / 1000  # one step, however many rows


def test_in_a_worker(tmp_path: Path) -> None:
    operation = Operation(64, 64, WeightFormat(4, 32, True))
    (kernel, *_) = kernels_for(operation, ISAS)
    wanted = Job(kernel.name, "", None, 1, "int8", (Case(2, 0, is_operation=True),), 2, operation)
    assert Job.from_json(wanted.to_json()) == wanted
    outcome = run_worker(wanted, None, lambda: None)
    assert len(outcome.measured[0].seconds) == 2 and len(outcome.measured[0].ceilings) == 2
    assert outcome.facts["isa"] == kernel.isa
