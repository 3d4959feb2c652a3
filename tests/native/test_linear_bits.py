"""Guards against: logits that change with the CPU, the number of threads, or the rows computed in the same step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nybble.quant.storage import StorageType

from .programs import ISAS, bits, sweep
from .test_linear_kernels import KERNELS, case_of, cases, storages

KINDS = sorted({(weights, activations, layout) for _, weights, activations, layout in KERNELS.values()})
every_kind = pytest.mark.parametrize(("weights", "activations", "layout"), KINDS)


def names(*kind: str) -> list[str]:
    """The kernels of this (weights, activations, layout) that this CPU can run."""
    return [name for name, (isa, *of) in KERNELS.items() if tuple(of) == kind and isa in ISAS]


@every_kind
@sweep(50)
@given(data=st.data())
def test_every_instruction_set_gives_the_same_bits(
    weights: str, activations: str, layout: str, data: st.DataObject
) -> None:
    """In each layout those of the first one."""
    case = data.draw(cases(weights, layout))
    expected = bits(case.run(f"linear_{weights}_{activations}_panel32_portable"))
    for name in names(weights, activations, layout):
        np.testing.assert_array_equal(bits(case.run(name)), expected, name)


@every_kind
@sweep(15)
@given(data=st.data())
def test_any_number_of_threads_gives_the_same_bits(
    weights: str, activations: str, layout: str, data: st.DataObject
) -> None:
    case = data.draw(cases(weights, layout))
    name = data.draw(st.sampled_from(names(weights, activations, layout)))
    expected = bits(case.run(name))
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(bits(case.run(name, threads)), expected, f"{threads} threads")


@pytest.mark.parametrize("name", [name for kind in KINDS for name in names(*kind)])
def test_a_row_does_not_notice_the_others(name: str) -> None:
    """Each row alone, and in steps of every size up to 64, gives the bits it gives among 97."""
    _, weights, _, layout = KERNELS[name]
    for storage in storages(weights, layout):
        blocks = 1 if storage.block_elements % 16 else 2 if storage.block_elements > 32 else 5
        k = 17 if storage.is_float else storage.block_elements * blocks
        case = case_of(storage, k, 33, 97, bias=True, residual="apart")
        whole = bits(case.run(name))
        for size in (*range(1, 14), 48, 49, 64):
            begin = 97 - size if size % 2 else 5
            rows = list(range(begin, begin + size))
            np.testing.assert_array_equal(bits(case.run(name, rows=rows)), whole[rows], f"{size} rows")


@pytest.mark.parametrize("name", [name for kind in KINDS if kind[1] == "int8" for name in names(*kind)])
def test_long_runs_of_rows_give_the_bits_of_short_ones(name: str) -> None:
    """More rows and features than share what is prepared of a panel at once, and panels enough to sort outliers."""
    _, weights, _, layout = KERNELS[name]
    for storage in (StorageType.Q4_0, StorageType.Q4_1, StorageType.Q8_0):
        if storage not in storages(weights, layout):
            continue
        k = 17 * storage.block_elements
        case = case_of(storage, k, 129, 389, bias=False, residual=None)
        case.x[:, [3, 40, 41, k - 1]] *= 40  # outliers of most rows, beside those of few
        whole = bits(case.run(name))
        for rows in ([0], [95, 96], [191, 192, 193], list(range(380, 389))):
            np.testing.assert_array_equal(bits(case.run(name, rows=rows)), whole[rows], f"{storage.name}, rows {rows}")


@every_kind
@sweep(15)
@given(data=st.data())
def test_threads_on_different_instruction_sets_give_the_same_bits(
    weights: str, activations: str, layout: str, data: st.DataObject
) -> None:
    """Each with its own kernel on one copy of the weights, as on chips whose cores differ; who does what is chance."""
    case = data.draw(cases(weights, layout))
    for number, name in enumerate(names(weights, activations, layout)):
        expected = bits(case.run(name))
        isas = [ISAS[(number + thread) % len(ISAS)] for thread in range(5)]
        np.testing.assert_array_equal(bits(case.run(name, 5, isas=isas)), expected, f"{name} among {isas}")
