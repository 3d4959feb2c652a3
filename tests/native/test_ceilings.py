"""The measured ceilings: there, and of an order that a CPU can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from nybble import _native
from tests.native.programs import ISAS, float_tensor, pack, pool

SECONDS = 0.005


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bandwidth_of_memory(threads: int) -> None:
    """Guards against passes that read nothing, or that threads share wrongly."""
    assert 1e6 < _native.measure_memory_bandwidth(pool(threads), 1 << 20, 1 << 20, SECONDS) < 1e13


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shapes", [[(1, 1)], [(33, 7), (5, 130)], [(200, 300)] * 3])
@pytest.mark.parametrize("cache", [0, 1000])
def test_bandwidth_of_weights(threads: int, shapes: list[tuple[int, int]], cache: int) -> None:
    """Guards against reading beside the weights (under a sanitizer), and against parts too small for all threads."""
    matrices = [pack(float_tensor(np.ones(shape))) for shape in shapes]
    assert 0 < _native.measure_weights_bandwidth(pool(threads), matrices, cache, SECONDS) < 1e13


def test_no_weights_have_no_bandwidth() -> None:
    assert _native.measure_weights_bandwidth(pool(), [], 0, SECONDS) == 0
    assert _native.measure_memory_bandwidth(pool(), 0, 0, SECONDS) == 0


@pytest.mark.parametrize("isa", ISAS)
def test_peaks(isa: str) -> None:
    """Guards against loops that a compiler saw through: no CPU multiplies 10^14 times a second."""
    assert 1e6 < _native.measure_int8_peak(pool(), [isa], SECONDS) < 1e14
    assert 1e6 < _native.measure_fp32_peak(pool(), [isa], SECONDS) < 1e14


@pytest.mark.parametrize("measure", [_native.measure_int8_peak, _native.measure_fp32_peak])
def test_peaks_of_threads_that_differ(measure: Callable[[_native.ThreadPool, Sequence[str], float], float]) -> None:
    """Guards against a slow thread that is given as much to do as a fast one, and against one that is not counted."""
    best, least = measure(pool(), ISAS[:1], 0.03), measure(pool(), ["portable"], 0.03)
    both = measure(pool(2), [ISAS[0], "portable"], 0.03)
    assert max(best, least) / 20 < both < 2 * (best + least)


def test_unknown_instruction_set() -> None:
    with pytest.raises(ValueError, match="instruction set"):
        _native.measure_int8_peak(pool(), ["mmx"], SECONDS)
    with pytest.raises(ValueError, match="an instruction set for each thread"):
        _native.measure_int8_peak(pool(2), ISAS[:1], SECONDS)
