"""Guards against: packing rules that change weights, zero points mixed up, scales that overflow unnoticed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import ModelFileError, UnsupportedFeature
from nybble.quant import blocks
from nybble.quant.blocks import dequantise
from nybble.quant.matrix import QuantisedMatrix, to_matrix
from nybble.quant.packing_rules import PACKED_AS
from nybble.quant.storage import StorageType

from .stored import FACTORS, QUANTISED, as_tensor, random_tensor, set_factor

EXACT = [storage for storage in QUANTISED if PACKED_AS[storage].exact]
ROUNDED = [storage for storage in QUANTISED if not PACKED_AS[storage].exact]


def test_the_rules_read_as_agreed() -> None:
    assert {storage.name: (str(packed), packed.exact) for storage, packed in PACKED_AS.items()} == {
        "F32": ("32-bit float", True),
        "F16": ("16-bit float", True),
        "BF16": ("16-bit float", True),
        "Q4_0": ("4-bit, block 32", True),
        "Q4_1": ("4-bit, block 32, offsets", True),
        "Q5_0": ("8-bit, block 32", True),
        "Q5_1": ("8-bit, block 32, offsets", True),
        "Q8_0": ("8-bit, block 32", True),
        "Q4_K": ("4-bit, block 32, offsets", False),
        "Q5_K": ("8-bit, block 32, offsets", False),
        "Q6_K": ("8-bit, block 16", False),
    }
    assert set(PACKED_AS) == set(StorageType)


@given(
    bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([16, 32]),
    has_offsets=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_matrix_means_what_its_definition_says(bits: int, block: int, has_offsets: bool, seed: int) -> None:
    """Element by element in Python's own arithmetic."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (3, 2 * block), np.uint8)
    scales, offsets = random.normal(size=(2, 3, 2)).astype(np.float16)
    matrix = QuantisedMatrix(bits, block, 2 * block - 3, codes, scales, offsets if has_offsets else None)
    weights = matrix.dequantise()
    assert weights.shape == (3, 2 * block - 3)
    assert weights.dtype == np.float64
    for row in range(3):
        for column in range(2 * block - 3):
            scale, code = float(scales[row, column // block]), int(codes[row, column])
            if has_offsets:
                assert weights[row, column] == scale * code + float(offsets[row, column // block])
            else:
                assert weights[row, column] == scale * (code - 2 ** (bits - 1))


@pytest.mark.parametrize("storage", QUANTISED, ids=lambda storage: storage.name)
@settings(max_examples=30)
@given(rows=st.integers(1, 4), row_blocks=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_shapes_types_and_code_ranges(storage: StorageType, rows: int, row_blocks: int, seed: int) -> None:
    tensor = random_tensor(storage, (rows, row_blocks * storage.block_elements), seed)
    matrix, packed = to_matrix(tensor), PACKED_AS[storage]
    assert (matrix.bits, matrix.block) == (packed.bits, packed.block)
    assert (matrix.codes.shape, matrix.codes.dtype) == (tensor.shape, np.dtype(np.uint8))
    assert (matrix.scales.shape, matrix.scales.dtype) == ((rows, tensor.shape[1] // packed.block), np.dtype(np.float16))
    assert (matrix.offsets is not None) == packed.has_offsets
    if matrix.offsets is not None:
        assert (matrix.offsets.shape, matrix.offsets.dtype) == (matrix.scales.shape, np.dtype(np.float16))
    assert int(matrix.codes.max()) < 1 << matrix.bits


@pytest.mark.parametrize("storage", EXACT, ids=lambda storage: storage.name)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), largest=st.sampled_from([2.0**-24, 2.0**-14, 0.01, 1.0, 65504.0]))
def test_exact_types_lose_nothing(storage: StorageType, seed: int, largest: float) -> None:
    """fp64 holds scale · code + offset exactly, so rounding it once must give the fp32 decoder's bits."""
    tensor = random_tensor(storage, (3, 64), seed, largest)
    assert (to_matrix(tensor).dequantise().astype(np.float32) == dequantise(tensor)).all()


@pytest.mark.parametrize("storage", ROUNDED, ids=lambda storage: storage.name)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), largest=st.sampled_from([2.0**-24, 2.0**-14, 0.01, 1.0, 500.0]))
def test_rounded_types_stay_within_the_derived_bound(storage: StorageType, seed: int, largest: float) -> None:
    """fp16 keeps 11 bits: half a unit is 2⁻¹¹ of the value, or 2⁻²⁵ among subnormals. fp32 decoding adds 2⁻²³ of it."""
    tensor = random_tensor(storage, (3, 512), seed, largest)
    matrix, stored = to_matrix(tensor), dequantise(tensor).astype(np.float64)
    codes = matrix.codes.reshape(*matrix.scales.shape, matrix.block).astype(np.float64)
    scales = np.abs(matrix.scales.astype(np.float64))[..., None]
    # The bound is a fraction of the value before rounding, which is at most this much above the one after.
    half_unit = 2.0**-11 * (1 + 2.0**-10)
    distance = np.abs(codes if matrix.offsets is not None else codes - 128)
    bound = distance * np.maximum(scales * half_unit, 2.0**-25)
    magnitude = distance * scales
    if matrix.offsets is not None:
        offsets = np.abs(matrix.offsets.astype(np.float64))[..., None]
        bound = bound + np.maximum(offsets * half_unit, 2.0**-25)
        magnitude = magnitude + offsets
    error = np.abs(matrix.dequantise() - stored).reshape(bound.shape)
    assert (error <= bound + magnitude * 2.0**-22).all()


@pytest.mark.parametrize("storage", ROUNDED, ids=lambda storage: storage.name)
def test_rounding_is_to_the_nearest_even(storage: StorageType) -> None:
    """A factor of 1 + 2⁻¹⁰ times 3 is 3 + 3·2⁻¹⁰: half-way between two fp16 numbers, 2⁻⁹ apart there."""
    if storage is StorageType.Q6_K:
        octets = np.zeros((1, 210), np.uint8)
        octets[0, 192:208] = 3
    else:
        octets = np.zeros((1, storage.block_bytes), np.uint8)
        octets[0, 4:8] = 3
        octets[0, 8:12] = 3
    tensor = as_tensor(storage, (1, 256), octets)
    for place in FACTORS[storage]:
        tensor = set_factor(tensor, 0, 0, place, 1 + 2.0**-10)
    matrix = to_matrix(tensor)
    assert matrix.scales[0, 0] == np.float16(3 + 2 * 2.0**-9)  # 3 + 1.5 units goes to the even 2
    if matrix.offsets is not None:
        assert matrix.offsets[0, 0] == np.float16(-(3 + 2 * 2.0**-9))


@pytest.mark.parametrize("storage", QUANTISED, ids=lambda storage: storage.name)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_factors_that_are_not_finite_are_refused_by_name(storage: StorageType, value: float) -> None:
    tensor = random_tensor(storage, (5, 2 * storage.block_elements), 7)
    for place in FACTORS[storage]:
        broken = set_factor(tensor, 3, 1, place, value)
        with pytest.raises(ModelFileError, match=r"toy\.gguf: weight row 3: the (scale|offset) of block \d+ is"):
            to_matrix(broken)


@pytest.mark.parametrize("storage", ROUNDED, ids=lambda storage: storage.name)
def test_products_that_pass_fp16_are_refused(storage: StorageType) -> None:
    """65504 is finite as a factor, and dequantises; times 60 it does not fit the packed scale."""
    tensor = random_tensor(storage, (2, 256), 8, largest=0.0)
    octets = tensor.rows.copy()
    octets[:, slice(192, 208) if storage is StorageType.Q6_K else slice(4, 16)] = 60
    tensor = as_tensor(storage, (2, 256), octets)
    assert to_matrix(tensor).scales.max() == 0
    for place in FACTORS[storage]:
        broken = set_factor(tensor, 1, 0, place, 65504.0)
        assert np.isfinite(dequantise(broken)).all()
        with pytest.raises(ModelFileError, match=re.escape("must be finite and at most 65504 (fp16)")):
            to_matrix(broken)


@pytest.mark.parametrize("shape", [(64,), (2, 2, 32)])
def test_only_matrices_are_packed(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedFeature, match="expected a matrix of quantised blocks, found Q4_0 of shape"):
        to_matrix(random_tensor(StorageType.Q4_0, shape, 9))


@pytest.mark.parametrize("storage", [StorageType.F32, StorageType.F16, StorageType.BF16])
def test_floats_have_no_codes(storage: StorageType) -> None:
    with pytest.raises(UnsupportedFeature, match="expected a matrix of quantised blocks"):
        to_matrix(random_tensor(storage, (2, 32), 10, largest=None))


@pytest.mark.parametrize("storage", QUANTISED, ids=lambda storage: storage.name)
def test_the_size_of_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch, storage: StorageType) -> None:
    tensor = random_tensor(storage, (7, 512), 11)
    expected = to_matrix(tensor)
    monkeypatch.setattr(blocks, "_CHUNK_ELEMENTS", 1)
    found = to_matrix(tensor)
    assert (found.codes == expected.codes).all()
    assert (found.scales == expected.scales).all()
    assert found.offsets is None or expected.offsets is None or (found.offsets == expected.offsets).all()
    with pytest.raises(ModelFileError, match="weight row 6"):
        to_matrix(set_factor(replace(tensor), 6, 0, FACTORS[storage][0], np.nan))
