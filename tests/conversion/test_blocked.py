"""Quantised tensors in the arrays of MatMulNBits: the same weights."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest

from nybble.conversion.blocked import BlockedMatrix, blocked_matrix
from nybble.errors import ModelFileError
from nybble.quant.blocks import dequantise
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor
from tests.models.tiny import random_blocks

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
OFFSETS = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
ROWS, COLUMNS = 9, 512


def some_tensor(name: str) -> Tensor:
    generator = np.random.default_rng(1)
    if name.endswith("K"):
        rows = random_blocks(name, (ROWS, COLUMNS), generator)
    else:
        values = generator.normal(0.1, 1, (ROWS, COLUMNS)).astype(np.float32)
        rows = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    return Tensor("weight", StorageType[name], (ROWS, COLUMNS), rows, "made up")


def decoded(matrix: BlockedMatrix) -> np.ndarray:
    """The weights in fp64, by the formula of the operator's documentation."""
    codes = matrix.codes.reshape(ROWS, -1)
    if matrix.bits == 4:
        codes = np.stack((codes & 15, codes >> 4), axis=2).reshape(ROWS, -1)
    points = 1 << (matrix.bits - 1) if matrix.zero_points is None else matrix.zero_points.astype(np.float64)[..., None]
    blocks = codes.reshape(ROWS, -1, matrix.block).astype(np.float64)
    return (matrix.scales.astype(np.float64)[..., None] * (blocks - points)).reshape(ROWS, COLUMNS)


@pytest.mark.parametrize("name", TYPES)
def test_weights_stay(name: str) -> None:
    tensor = some_tensor(name)
    matrix = blocked_matrix(tensor, requantise=False)
    expected = dequantise(tensor).astype(np.float64)
    # dequantise rounds products and sums of fp32; the zero point is rounded once.
    largest = np.abs(matrix.scales).max() * (255 if matrix.bits == 8 else 15) + np.abs(expected).max()
    assert np.abs(decoded(matrix) - expected).max() <= (2.0**-22 * largest if name in OFFSETS else 2.0**-24 * largest)
    assert (matrix.zero_points is not None) == (name in OFFSETS)


@pytest.mark.parametrize("name", OFFSETS)
def test_requantised_weights_are_near(name: str) -> None:
    tensor = some_tensor(name)
    matrix = blocked_matrix(tensor, requantise=True)
    assert (matrix.bits, matrix.zero_points) == (8, None)
    assert np.array_equal(matrix.scales, matrix.scales.astype(np.float16)), "packing for the kernels rounds others"
    steps = np.repeat(matrix.scales, matrix.block, axis=1)
    assert (np.abs(decoded(matrix) - dequantise(tensor)) <= 0.5001 * steps).all()


def test_scales_below_the_normal_numbers_of_fp16() -> None:
    """Guards against codes that leave 8 bits where rounding makes a scale much smaller."""
    tensor = some_tensor("Q4_1")
    rows = tensor.rows.copy().reshape(-1, 20)
    rows[:, :2] = np.arange(1, len(rows) + 1, dtype="<u2").view(np.uint8).reshape(-1, 2)
    rows[:, 2:4] = 0
    tensor = replace(tensor, rows=rows.reshape(ROWS, -1))
    matrix = blocked_matrix(tensor, requantise=True)
    steps = np.repeat(matrix.scales, matrix.block, axis=1)
    assert (np.abs(decoded(matrix) - dequantise(tensor)) <= 0.5001 * steps).all()


@pytest.mark.parametrize("requantise", [False, True])
def test_a_block_without_scale_is_its_offset(requantise: bool) -> None:
    tensor = some_tensor("Q4_1")
    rows = tensor.rows.copy()
    rows[2, :2] = 0
    rows[3, :4] = 0
    tensor = replace(tensor, rows=rows)
    expected = dequantise(tensor)
    assert np.abs(expected[2, :32]).max() > 0 and (expected[3, :32] == 0).all()
    found = decoded(blocked_matrix(tensor, requantise=requantise))
    assert np.allclose(found[2:4, :32], expected[2:4, :32], rtol=2.0**-8 if requantise else 1e-6, atol=0)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize("bits", [0x7C00, 0x7E00])
@pytest.mark.parametrize("requantise", [False, True])
def test_numbers_that_are_none_are_refused(name: str, bits: int, requantise: bool) -> None:
    tensor = some_tensor(name)
    rows = tensor.rows.copy()
    rows[4, :2] = np.array([bits], "<u2").view(np.uint8)
    with pytest.raises(ModelFileError, match=r"weight row 4: the (scale|offset) of block 0 is not finite"):
        blocked_matrix(replace(tensor, rows=rows), requantise=requantise)
