"""Guards against: frequency tables that are almost right, which only shows at long contexts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nybble.graph.reference import rotate
from nybble.models.config import TransformerConfig
from nybble.models.rope import FrequencyFactors, LinearScaling, inverse_frequencies

from .tiny import TinyModel, tiny_checkpoint

LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("head_dim", [2, 8, 64, 128])
@pytest.mark.parametrize("base", [10000.0, 500000.0, 1e6])
def test_plain_table(head_dim: int, base: float) -> None:
    expected = [1 / base ** (2 * pair / head_dim) for pair in range(head_dim // 2)]
    np.testing.assert_allclose(inverse_frequencies(head_dim, base, None), expected, rtol=1e-14)


def test_linear_scaling_divides_every_frequency() -> None:
    plain = inverse_frequencies(64, 10000.0, None)
    np.testing.assert_array_equal(inverse_frequencies(64, 10000.0, LinearScaling(4.0)), plain / 4)


def test_factors_divide_one_by_one() -> None:
    factors = (1.0, 2.0, 4.0, 8.0)
    plain = inverse_frequencies(8, 10000.0, None)
    np.testing.assert_array_equal(inverse_frequencies(8, 10000.0, FrequencyFactors(factors)), plain / factors)


def test_llama3_scaling_by_its_published_formula() -> None:
    """Short wavelengths as they are, long ones divided by the factor, between them a blend of the two frequencies."""
    model = TinyModel(head_dim=128, heads=2, hidden=256, rope_base=500000.0, rope_scaling=LLAMA31)
    config = TransformerConfig.from_gguf(tiny_checkpoint(model))
    found = inverse_frequencies(config.head_dim, config.rope_base, config.rope_scaling)
    kinds = set()
    for pair, frequency in enumerate(found):
        plain = 500000.0 ** (-2 * pair / 128)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4:
            kinds.add("short")
            expected = plain
        elif wavelength > 8192:
            kinds.add("long")
            expected = plain / 8
        else:
            kinds.add("between")
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * plain / 8 + smooth * plain
        assert frequency == pytest.approx(expected, rel=1e-6)  # the file's factors are fp32
    assert kinds == {"short", "between", "long"}


def test_rotation_turns_pairs_half_a_head_apart() -> None:
    frequencies = np.array([0.5, 0.25])
    values = np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])
    turned = rotate(values, np.array([3]), frequencies)[0]
    for head in (0, 4):
        for pair, frequency in enumerate(frequencies):
            point = complex(values[0, head + pair], values[0, head + pair + 2])
            expected = point * complex(math.cos(3 * frequency), math.sin(3 * frequency))
            assert turned[head + pair] == pytest.approx(expected.real)
            assert turned[head + pair + 2] == pytest.approx(expected.imag)
