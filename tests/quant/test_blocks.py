"""Guards against: a bit, a nibble order, a scale or a rounding that differs from the reference decoders."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nybble.quant import blocks
from nybble.quant.blocks import dequantise
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor

from .stored import QUANTISED, as_tensor, random_tensor


def reference(tensor: Tensor) -> NDArray[np.float32]:
    """What the gguf package makes of the same bytes."""
    with np.errstate(all="ignore"):
        weights = gguf.quants.dequantize(tensor.rows.copy(), gguf.GGMLQuantizationType(tensor.storage.ggml_id))
    return np.asarray(weights, np.float32).reshape(tensor.shape)


def assert_same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equal bit for bit, signs of zero included; NaNs need only be NaNs, since hardware picks their sign."""
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    numbers = ~np.isnan(expected)
    assert (np.isnan(found) == ~numbers).all()
    assert (found.view(np.uint32)[numbers] == expected.view(np.uint32)[numbers]).all()


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(1, 2), max_size=2))


@pytest.mark.parametrize("storage", StorageType, ids=lambda storage: storage.name)
@settings(max_examples=40)
@given(extents=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_any_bits_decode_as_the_reference_does(
    storage: StorageType, extents: tuple[int, int, list[int]], seed: int
) -> None:
    rows, row_blocks, outer = extents
    tensor = random_tensor(storage, (*outer, rows, row_blocks * storage.block_elements), seed, largest=None)
    assert_same_bits(dequantise(tensor), reference(tensor))


@pytest.mark.parametrize("storage", QUANTISED, ids=lambda storage: storage.name)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), largest=st.sampled_from([2.0**-24, 2.0**-14, 0.01, 1.0, 65504.0]))
def test_finite_factors_of_every_size_decode_as_the_reference_does(
    storage: StorageType, seed: int, largest: float
) -> None:
    tensor = random_tensor(storage, (3, 2 * storage.block_elements), seed, largest)
    assert np.isfinite(dequantise(tensor)).all()
    assert_same_bits(dequantise(tensor), reference(tensor))


@pytest.mark.parametrize("storage", QUANTISED, ids=lambda storage: storage.name)
def test_every_byte_of_a_block_takes_every_value(storage: StorageType) -> None:
    """One byte at a time over a zero block with factors of one: a misplaced bit cannot hide behind others."""
    octets = np.zeros((storage.block_bytes, 256, storage.block_bytes), np.uint8)
    places = np.arange(storage.block_bytes)
    octets[places, :, places] = np.arange(256, dtype=np.uint8)
    for exponent in (1, 3, 209):
        if exponent < storage.block_bytes:
            octets[:, :, exponent] |= 0x3C
    tensor = as_tensor(storage, (storage.block_bytes * 256, storage.block_elements), octets)
    assert_same_bits(dequantise(tensor), reference(tensor))


@pytest.mark.parametrize("storage", [StorageType.F16, StorageType.BF16], ids=lambda storage: storage.name)
def test_every_half_precision_number(storage: StorageType) -> None:
    octets = np.arange(65536, dtype="<u2").view(np.uint8)
    tensor = as_tensor(storage, (65536,), octets)
    assert_same_bits(dequantise(tensor), reference(tensor))


@pytest.mark.parametrize("storage", [StorageType.Q4_1, StorageType.F16, StorageType.Q6_K], ids=lambda each: each.name)
@pytest.mark.parametrize("chunk", [1, 700, 10**9])
def test_the_size_of_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch, storage: StorageType, chunk: int) -> None:
    tensor = random_tensor(storage, (7, 512), 1, largest=None)
    monkeypatch.setattr(blocks, "_CHUNK_ELEMENTS", chunk)
    assert_same_bits(dequantise(tensor), reference(tensor))


@pytest.mark.parametrize("storage", StorageType, ids=lambda storage: storage.name)
def test_the_result_is_new_memory(storage: StorageType) -> None:
    """A view of the mapped file would change or crash with the file, and could not be written."""
    tensor = random_tensor(storage, (2, 256), 2, largest=None)
    weights = dequantise(tensor)
    assert weights.flags.writeable
    assert not np.shares_memory(weights, tensor.rows)


def test_rows_in_another_order() -> None:
    tensor = random_tensor(StorageType.Q5_K, (4, 256), 3)
    order = np.array([2, 0, 3, 1])
    assert_same_bits(dequantise(tensor.take_rows(order)), reference(tensor)[order])
