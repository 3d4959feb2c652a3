"""Guards against: logits that change with the CPU, the number of threads, or the rows computed in the same step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .programs import ISAS, bits, sweep
from .test_linear_kernels import KERNELS, case_of, cases, storages

KINDS = sorted({(weights, activations) for _, weights, activations in KERNELS.values()})
every_kind = pytest.mark.parametrize(("weights", "activations"), KINDS)


def kernel(isa: str, weights: str, activations: str) -> str:
    (name,) = (name for name, kind in KERNELS.items() if kind == (isa, weights, activations))
    return name


@every_kind
@sweep(50)
@given(data=st.data())
def test_every_instruction_set_gives_the_same_bits(weights: str, activations: str, data: st.DataObject) -> None:
    case = data.draw(cases(weights))
    expected = bits(case.run(kernel("portable", weights, activations)))
    for isa in ISAS:
        np.testing.assert_array_equal(bits(case.run(kernel(isa, weights, activations))), expected, isa)


@every_kind
@sweep(15)
@given(data=st.data(), isa=st.sampled_from(ISAS))
def test_any_number_of_threads_gives_the_same_bits(
    weights: str, activations: str, data: st.DataObject, isa: str
) -> None:
    case, name = data.draw(cases(weights)), kernel(isa, weights, activations)
    expected = bits(case.run(name))
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(bits(case.run(name, threads)), expected, f"{threads} threads")


@every_kind
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_notice_the_others(weights: str, activations: str, isa: str) -> None:
    """Each row alone, and in steps of every size up to 64, gives the bits it gives among 97."""
    name = kernel(isa, weights, activations)
    for storage in storages(weights):
        blocks = 1 if storage.block_elements % 16 else 2 if storage.block_elements > 32 else 5
        k = 17 if storage.is_float else storage.block_elements * blocks
        case = case_of(storage, k, 33, 97, bias=True, residual="apart")
        whole = bits(case.run(name))
        for size in (*range(1, 14), 48, 49, 64):
            begin = 97 - size if size % 2 else 5
            rows = list(range(begin, begin + size))
            np.testing.assert_array_equal(bits(case.run(name, rows=rows)), whole[rows], f"{size} rows")
