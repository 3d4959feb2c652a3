"""Floats quantised when they are packed, against the ``gguf`` package, whose results are ggml's."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from nybble.quant.blocks import dequantise
from nybble.quant.error import conversion_error
from nybble.quant.matrix import to_matrix
from nybble.quant.quantise import quantised
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor

TARGETS = (StorageType.Q4_0, StorageType.Q8_0)


def tensor(values: np.ndarray, storage: StorageType, target: StorageType | None) -> Tensor:
    """``values`` stored as floats of a kind."""
    fp32 = np.ascontiguousarray(values, np.float32)
    stored = {
        StorageType.F32: lambda: fp32.view(np.uint8),
        StorageType.F16: lambda: fp32.astype("<f2").view(np.uint8),
        StorageType.BF16: lambda: (fp32.view(np.uint32) >> 16).astype("<u2").view(np.uint8),
    }[storage]()
    return Tensor("weight", storage, values.shape, stored.reshape(len(values), -1), "file", quantised_as=target)


def values_of(seed: int, rows: int, features: int) -> np.ndarray:
    """Of many sizes, with zeros, ties, and numbers that lie exactly between two codes."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, features)) * 10.0 ** random.integers(-6, 4, (rows, 1))
    values[random.random(values.shape) < 0.1] = 0
    values[0] = 0
    values[1] = np.resize([8, -8, 0.5, -0.5, 1.5, 3.5, -2.5], features)
    values[2] = np.resize([-127, 127, 0.5, -0.5, 1.5, -1.5, 63.5, -126.5], features)
    return values.astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", [StorageType.F32, StorageType.F16, StorageType.BF16])
def test_bits_are_those_of_ggml(storage: StorageType, target: StorageType) -> None:
    for seed, (rows, features) in enumerate([(3, 32), (70, 96), (5, 4096)]):
        source = tensor(values_of(seed, rows, features), storage, target)
        plain = dequantise(tensor(values_of(seed, rows, features), storage, None))
        found = quantised(source)
        assert (found.storage, found.quantised_as, found.shape) == (target, None, source.shape)
        assert (source.packed_from, found.packed_from) == (target, target)
        expected = gguf.quants.quantize(plain, gguf.GGMLQuantizationType[target.name])
        np.testing.assert_array_equal(found.rows, expected)


def test_what_is_not_to_be_quantised_stays(target: StorageType = StorageType.Q4_0) -> None:
    plain = tensor(values_of(0, 4, 64), StorageType.F16, None)
    assert quantised(plain) is plain


@pytest.mark.parametrize("target", TARGETS)
def test_the_error_is_that_of_quantising(target: StorageType) -> None:
    values = values_of(1, 700, 512)  # several chunks
    source = tensor(values, StorageType.F32, target)
    difference = to_matrix(quantised(source)).dequantise() - values
    found = conversion_error(source)
    assert found.relative_rms == pytest.approx(np.sqrt((difference**2).sum() / (values.astype(float) ** 2).sum()))
    assert found.maximum_absolute == pytest.approx(np.abs(difference).max())
    assert conversion_error(tensor(values, StorageType.F32, None)).relative_rms == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("target", TARGETS)
def test_numbers_that_no_block_holds_make_its_scale_so(target: StorageType, value: float) -> None:
    values = values_of(2, 4, 64)
    values[3, 40] = value
    scales = quantised(tensor(values, StorageType.F32, target)).rows.reshape(4, 2, -1)[..., :2].copy().view("<f2")
    assert np.isfinite(scales).sum() == 7 and not np.isfinite(scales[3, 1])
