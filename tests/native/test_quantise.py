"""Guards against: activations rounded to other codes than their definition says, and rounding that hides NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nybble import _native
from nybble.graph import reference

from .programs import ISAS, UNIT, bits, sweep

SMALLEST_MAXIMUM = np.float32(1e-30)
"""A block with nothing larger counts as zeros."""


def quantised(
    isa: str, x: NDArray[np.float32], block: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Codes (rows, width), scales and scaled sums (rows, blocks)."""
    codes, scales, sums = _native.quantise_rows(isa, x, block)
    return np.array(codes, np.int64).reshape(x.shape), scales.T, sums.T


def check(isa: str, x: NDArray[np.float32], block: int) -> None:
    """Compare with exact arithmetic.

    The engine rounds x · fl(127 / max): the quotient and the product each carry a relative error of at most 2⁻²⁴, so
    a code is the nearest integer to something within 2.01 · 2⁻²⁴ of the exact x · 127 / max, relatively.
    """
    codes, scales, sums = quantised(isa, x, block)
    expected_codes, _ = reference.quantise_rows(x.astype(np.float64), block)
    for row, values in enumerate(x):
        for index, begin in enumerate(range(0, x.shape[1], block)):
            part, found = values[begin : begin + block], codes[row, begin : begin + block]
            maximum = np.abs(part).max()
            if maximum <= SMALLEST_MAXIMUM:
                assert not found.any() and scales[row, index] == 0
                continue
            exact = part.astype(np.float64) * 127 / np.float64(maximum)
            slack = np.abs(exact) * 2.01 * UNIT
            assert (np.abs(found - exact) <= 0.5 + slack).all()
            clear = np.abs(np.abs(exact - np.trunc(exact)) - 0.5) > slack + 1e-12
            np.testing.assert_array_equal(found[clear], expected_codes[row, begin : begin + block][clear])
            assert scales[row, index] == maximum / np.float32(127)
            assert sums[row, index] == scales[row, index] * np.float32(found.sum())


@sweep(60)
@example(1, 1, 16, 0, 0)
@example(3, 33, 32, 38, 1)
@example(3, 64, 16, -45, 2)
@given(
    rows=st.integers(1, 4),
    width=st.integers(1, 200),
    block=st.sampled_from([16, 32, 48, 64, 256]),
    exponent=st.integers(-45, 38),
    seed=st.integers(0, 1000),
)
def test_codes_are_nearest(rows: int, width: int, block: int, exponent: int, seed: int) -> None:
    """Any width, also one that ends within a block or a vector; any magnitude, down to denormals."""
    random = np.random.default_rng(seed)
    x = (random.uniform(-1, 1, (rows, width)) * 10.0**exponent).astype(np.float32)
    x[random.random(x.shape) < 0.1] = 0
    for isa in ISAS:
        check(isa, x, block)


@pytest.mark.parametrize("isa", ISAS)
def test_ties(isa: str) -> None:
    """x · 127 / max exactly between two integers, where max is 127 and the arithmetic exact: to the even code."""
    x = np.concatenate(([127], np.arange(-126, 127) + 0.5)).astype(np.float32)[None]
    codes, scales, _ = quantised(isa, x, 256)
    assert scales[0, 0] == 1
    np.testing.assert_array_equal(codes[0], np.rint(x[0]))


@pytest.mark.parametrize("isa", ISAS)
def test_zeros_have_scale_zero(isa: str) -> None:
    codes, scales, sums = quantised(isa, np.array([[0.0, -0.0] * 20], np.float32), 16)
    assert not codes.any() and not scales.any() and not sums.any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 31, 36])
def test_a_block_that_is_not_finite_has_a_scale_that_is_nan(isa: str, value: float, place: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 37)).astype(np.float32)
    x[1, place] = value
    codes, scales, sums = quantised(isa, x, 32)
    assert np.isfinite(scales[0]).all()
    spoilt = np.arange(2) == place // 32
    np.testing.assert_array_equal(np.isnan(scales[1]), spoilt)
    np.testing.assert_array_equal(np.isnan(sums[1]), spoilt)
    whole = np.repeat(spoilt, 32)[:37]
    assert not codes[1, whole].any()  # defined, whatever the instruction set makes of NaN as an integer


@sweep(40)
@given(
    width=st.integers(1, 100),
    block=st.sampled_from([16, 32, 64]),
    exponent=st.integers(-45, 38),
    seed=st.integers(0, 1000),
    spoil=st.sampled_from([None, np.nan, np.inf]),
)
def test_every_instruction_set_gives_the_same_bits(
    width: int, block: int, exponent: int, seed: int, spoil: float | None
) -> None:
    random = np.random.default_rng(seed)
    x = (random.normal(size=(2, width)) * 10.0**exponent).clip(-3e38, 3e38).astype(np.float32)
    if spoil is not None:
        x[0, random.integers(width)] = spoil
    first = quantised(ISAS[-1], x, block)
    for isa in ISAS[:-1]:
        for expected, found in zip(first, quantised(isa, x, block), strict=True):
            if found.dtype == np.float32:
                expected, found = (np.where(np.isnan(part), np.nan, part) for part in (expected, found))
                expected, found = bits(expected), bits(found)
            np.testing.assert_array_equal(found, expected)


def test_blocks_must_suit_the_vectors() -> None:
    for block in (0, 8, 24):
        with pytest.raises(ValueError, match="block"):
            _native.quantise_rows("portable", np.zeros((1, 4), np.float32), block)
