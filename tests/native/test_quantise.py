"""Guards against: activations rounded to other codes than their definition says, and rounding that hides NaN."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nybble import _native
from nybble.graph import reference

from .programs import ISAS, UNIT, bits, sweep

SMALLEST_MAXIMUM = np.float32(1e-30)
"""A group with nothing larger counts as zeros."""
GROUP = reference.ACTIVATION_GROUP
BLOCKS = (16, 32, 64, 128)


@dataclass
class Quantised:
    """Codes and outliers (rows, width), scales (rows, groups) and sums of codes (rows, blocks)."""

    codes: NDArray[np.float32]
    scales: NDArray[np.float32]
    sums: NDArray[np.float32]
    outliers: NDArray[np.float32]


def quantised(isa: str, x: NDArray[np.float32], block: int) -> Quantised:
    return Quantised(*_native.quantise_rows(isa, x, block))


def check(isa: str, x: NDArray[np.float32], block: int) -> None:
    """Compare with exact arithmetic.

    The engine rounds x · fl(127 / max): the quotient and the product each carry a relative error of at most 2⁻²⁴, so
    a code is the nearest integer to something within 2.01 · 2⁻²⁴ of the exact x · 127 / max, relatively.
    """
    found = quantised(isa, x, block)
    check_outliers(found.outliers, x)
    rest = x - found.outliers
    expected_codes, _ = reference.quantise_rows(rest.astype(np.float64))
    for row, values in enumerate(rest):
        for index, begin in enumerate(range(0, x.shape[1], GROUP)):
            part, codes = values[begin : begin + GROUP], found.codes[row, begin : begin + GROUP]
            scale, maximum = found.scales[row, index], np.abs(part).max()
            if maximum <= SMALLEST_MAXIMUM:
                assert not codes.any() and scale == 0
            else:
                exact = part.astype(np.float64) * 127 / np.float64(maximum)
                slack = np.abs(exact) * 2.01 * UNIT
                assert (np.abs(codes - exact) <= 0.5 + slack).all()
                clear = np.abs(np.abs(exact - np.trunc(exact)) - 0.5) > slack + 1e-12
                np.testing.assert_array_equal(codes[clear], expected_codes[row, begin : begin + GROUP][clear])
                assert scale == maximum / np.float32(127)
        sums = [found.codes[row, begin : begin + block].sum() for begin in range(0, x.shape[1], block)]
        np.testing.assert_array_equal(found.sums[row], sums)


def check_outliers(found: NDArray[np.float32], x: NDArray[np.float32]) -> None:
    """Outliers are unrounded values, and those that the rule names.

    Where max² and 25 · mean square differ by less than the fp32 error of the latter (a sum of at most 128 squares and a
    division, all positive: 20 · 2⁻²⁴ in lanes of 16) either answer is right. So is either of two opposite values.
    Squares below the normal range lose their precision: groups of those are only asked to be unrounded.
    """
    assert ((found == 0) | (found == x)).all()
    for row in range(len(x)):
        for begin in range(0, x.shape[1], GROUP):
            rest = x[row, begin : begin + GROUP].astype(np.float64)
            taken = found[row, begin : begin + GROUP]
            assert np.count_nonzero(taken) <= reference.GROUP_OUTLIERS
            for _ in range(reference.GROUP_OUTLIERS):
                largest, limit = np.square(np.abs(rest).max()), 25 * np.square(rest).mean()
                if not 1e-30 < limit < 1e37 or abs(largest - limit) <= 20 * UNIT * limit:
                    break
                place = np.abs(rest).argmax()
                assert (taken[place] != 0) == (largest > limit)
                if largest < limit:
                    assert np.count_nonzero(np.where(rest != 0, taken, 0)) == 0
                    break
                rest[place] = 0


@sweep(60)
@example(1, 1, 16, 0, 0)
@example(3, 33, 32, 38, 1)
@example(3, 64, 16, -45, 2)
@given(
    rows=st.integers(1, 4),
    width=st.integers(1, 300),
    block=st.sampled_from(BLOCKS),
    exponent=st.integers(-45, 38),
    seed=st.integers(0, 1000),
)
def test_codes_are_nearest(rows: int, width: int, block: int, exponent: int, seed: int) -> None:
    """Any width, also one that ends within a block or a vector; any magnitude, down to denormals."""
    random = np.random.default_rng(seed)
    x = (random.uniform(-1, 1, (rows, width)) * 10.0**exponent).astype(np.float32)
    x[random.random(x.shape) < 0.1] = 0
    x[random.random(x.shape) < 0.02] *= np.float32(min(1e3, 1e37 / 10.0**exponent))
    for isa in ISAS:
        check(isa, x, block)


@pytest.mark.parametrize("isa", ISAS)
def test_ties(isa: str) -> None:
    """x · 127 / max exactly between two integers, where max is 127 and the arithmetic exact: to the even code."""
    x = np.concatenate(([127], np.arange(-63, 64) + 0.5, [127], np.arange(-126, 0) + 0.5)).astype(np.float32)[None]
    found = quantised(isa, x, 128)
    np.testing.assert_array_equal(found.scales[0], 1)
    np.testing.assert_array_equal(found.codes[0], np.rint(x[0]))


@pytest.mark.parametrize("isa", ISAS)
def test_zeros_have_scale_zero(isa: str) -> None:
    found = quantised(isa, np.array([[0.0, -0.0] * 20], np.float32), 16)
    assert not any(part.any() for part in astuple(found))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 127, 128, 140])
def test_a_group_that_is_not_finite_has_a_scale_that_is_nan(isa: str, value: float, place: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 141)).astype(np.float32)
    x[1, place] = value
    found = quantised(isa, x, 32)
    assert np.isfinite(found.scales[0]).all()
    spoilt = np.arange(2) == place // GROUP
    np.testing.assert_array_equal(np.isnan(found.scales[1]), spoilt)
    whole = np.repeat(spoilt, GROUP)[:141]
    assert not found.codes[1, whole].any()  # defined, whatever the instruction set makes of NaN as an integer
    assert not found.sums[1, np.repeat(spoilt, 4)[:5]].any()


@sweep(40)
@given(
    width=st.integers(1, 300),
    block=st.sampled_from(BLOCKS),
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
    first = astuple(quantised(ISAS[-1], x, block))
    for isa in ISAS[:-1]:
        for expected, found in zip(first, astuple(quantised(isa, x, block)), strict=True):
            expected, found = (np.where(np.isnan(part), np.nan, part) for part in (expected, found))
            np.testing.assert_array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("isa", ISAS)
def test_outliers_leave_their_neighbours_precise(isa: str) -> None:
    """One value of 1000 among ones: the ones keep codes of 127. Of five such values one stays in."""
    x = np.ones((2, 256), np.float32)
    x[0, 5] = x[0, 140] = -1000
    x[1, [3, 17, 31, 90, 91]] = 1000, 2000, 3000, 4000, -4000
    found = quantised(isa, x, 32)
    np.testing.assert_array_equal(np.flatnonzero(found.outliers[0]), [5, 140])
    assert (found.codes[0, found.outliers[0] == 0] == 127).all()
    np.testing.assert_array_equal(np.flatnonzero(found.outliers[1]), [17, 31, 90, 91])
    assert found.codes[1, 3] == 127


def test_blocks_must_suit_the_vectors() -> None:
    for block in (0, 8, 24, 48, 256):
        with pytest.raises(ValueError, match="block"):
            _native.quantise_rows("portable", np.zeros((1, 4), np.float32), block)
