"""Guards against: a highest logit that is not the highest, or not the first of equals; NaN and infinities unseen."""

from __future__ import annotations

import numpy as np
import pytest

from nybble import _native

from .programs import ISAS

each_isa = pytest.mark.parametrize("isa", ISAS)


@each_isa
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 32, 33, 100])
def test_the_highest_is_found_wherever_it_is(isa: str, size: int) -> None:
    """Also of negative ones, among equals, and where zeros of both signs are equal."""
    random = np.random.default_rng(size)
    for logits in (random.normal(size=size), -random.exponential(size=size), random.integers(-2, 1, size)):
        for position in range(size):
            moved = np.roll(logits, position).astype(np.float32)
            assert _native.highest_logit(isa, moved) == moved.argmax()
    assert _native.highest_logit(isa, np.array([-1.0, -0.0, 0.0] * size, np.float32)) == 1


@each_isa
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 16, 37])
def test_no_place_hides_what_is_not_finite(isa: str, value: float, size: int) -> None:
    for position in range(size):
        logits = np.ones(size, np.float32)
        logits[position] = value
        assert _native.highest_logit(isa, logits) is None
    assert _native.highest_logit(isa, np.full(size, np.finfo(np.float32).max)) == 0


def test_there_is_none_of_nothing() -> None:
    with pytest.raises(ValueError, match="no logits"):
        _native.highest_logit(ISAS[0], np.empty(0, np.float32))
