"""Guards against: codes, scales or zero points of ONNX's MatMulNBits order read from the wrong place."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import ModelFileError
from nybble.quant.blocks import dequantise
from nybble.quant.error import conversion_error
from nybble.quant.matrix import to_matrix
from nybble.quant.packing_rules import packed_as
from nybble.quant.storage import CODE_BITS, SeparateStorage, StorageType, ZeroPoints
from nybble.quant.tensor import Tensor

from .stored import SEPARATE, random_tensor, stored_floats


@st.composite
def storages(draw: st.DrawFn) -> tuple[SeparateStorage, int]:
    """A storage, and a K it may have."""
    block = draw(st.sampled_from([16, 32, 48, 64, 96, 128, 256]) | st.integers(1, 300))
    storage = SeparateStorage(
        draw(st.sampled_from(CODE_BITS)),
        block,
        draw(st.sampled_from([StorageType.F32, StorageType.F16, StorageType.BF16])),
        draw(st.sampled_from(ZeroPoints)),
    )
    return storage, draw(st.integers(1, 600 if block % 16 == 0 else block))


def number(storage: StorageType, octets: bytes) -> float:
    """The one F32, F16 or BF16 in ``octets``."""
    if storage is StorageType.BF16:
        return float(np.frombuffer(b"\0\0" + octets, "<f4")[0])
    return float(np.frombuffer(octets, "<f4" if storage is StorageType.F32 else "<f2")[0])


def code(octets: bytes, bits: int, index: int) -> int:
    """Code ``index`` of a row: the row is one number whose lowest bits come first."""
    return int.from_bytes(octets, "little") >> (index * bits) & ((1 << bits) - 1)


def parts_of_weight(tensor: Tensor, row: int, k: int) -> tuple[int, float, float]:
    """Code, scale and zero point of one weight, by the description of the format alone."""
    storage = tensor.storage
    assert isinstance(storage, SeparateStorage)
    assert tensor.scales is not None
    block, width = k // storage.block, storage.scales.block_bytes
    scale = number(storage.scales, tensor.scales[row, block * width : (block + 1) * width].tobytes())
    zero_point: float = 1 << (storage.bits - 1)
    if tensor.zero_points is not None:
        octets = tensor.zero_points[row].tobytes()
        if storage.zero_points is ZeroPoints.PACKED:
            zero_point = code(octets, storage.bits, block)
        else:
            zero_point = number(storage.scales, octets[block * width : (block + 1) * width])
    return code(tensor.rows[row].tobytes(), storage.bits, k), scale, zero_point


@settings(max_examples=150)
@given(kind=storages(), rows=st.integers(1, 3), data=st.data())
def test_weights_mean_what_the_format_says(kind: tuple[SeparateStorage, int], rows: int, data: st.DataObject) -> None:
    storage, columns = kind
    tensor = random_tensor(storage, (rows, columns), data.draw(st.integers(0, 1000)))
    weights, matrix = dequantise(tensor), to_matrix(tensor)
    packed = matrix.dequantise()
    assert weights.shape == packed.shape == (rows, columns)
    assert (matrix.bits, matrix.block) == (storage.bits, packed_as(storage).block)
    assert matrix.codes.max() < 1 << storage.bits
    for _ in range(20):
        row, k = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
        weight_code, scale, zero_point = parts_of_weight(tensor, row, k)
        assert weights[row, k] == (np.float32(weight_code) - np.float32(zero_point)) * np.float32(scale)
        half = float(np.float16(scale))
        if tensor.zero_points is None:
            assert packed[row, k] == half * (weight_code - zero_point)
        else:
            offset = float(np.float16(-(np.float32(half) * np.float32(zero_point))))
            assert packed[row, k] == half * weight_code + offset


@settings(max_examples=60)
@given(kind=storages(), seed=st.integers(0, 1000), largest=st.sampled_from([2.0**-24, 2.0**-14, 0.01, 1.0, 200.0]))
def test_packing_stays_within_the_derived_bound(kind: tuple[SeparateStorage, int], seed: int, largest: float) -> None:
    """A scale moves by half a unit of fp16, 2⁻¹¹ of itself or 2⁻²⁵; an offset by that of its own.

    weight = scale · (code - zero point): the rounded scale moves it by |code - zero point| of its half unit, and the
    offset's rounding adds half a unit of scale · zero point.
    """
    storage, columns = kind
    tensor = random_tensor(storage, (2, columns), seed, largest)
    packed = to_matrix(tensor).dequantise()
    worst = 0.0
    for row in range(2):
        for k in range(0, columns, 7):
            weight_code, scale, zero_point = parts_of_weight(tensor, row, k)
            bound = abs(weight_code - zero_point) * max(abs(scale) * 2.0**-11, 2.0**-25)
            if tensor.zero_points is not None:
                bound += max(abs(scale * zero_point) * 2.0**-11 * (1 + 2.0**-10), 2.0**-25)
            exact = Fraction(scale) * (weight_code - Fraction(zero_point))
            error = abs(float(Fraction(float(packed[row, k])) - exact))
            assert error <= bound
            worst = max(worst, error)
    measured = conversion_error(tensor).maximum_absolute
    assert worst <= measured * (1 + 2.0**-20) + 2.0**-60
    assert not packed_as(storage).exact or measured == 0


@pytest.mark.parametrize("storage", SEPARATE, ids=lambda storage: storage.name)
def test_what_is_behind_k_does_not_matter(storage: SeparateStorage) -> None:
    columns = storage.block - 3
    tensor = random_tensor(storage, (1, columns), 0)
    octets = tensor.rows.copy()
    octets[:, -(-columns * storage.bits // 8) :] ^= 255
    other = Tensor("weight", storage, tensor.shape, octets, "toy.onnx", tensor.scales, tensor.zero_points)
    np.testing.assert_array_equal(dequantise(other), dequantise(tensor))
    np.testing.assert_array_equal(to_matrix(other).dequantise(), to_matrix(tensor).dequantise())


@pytest.mark.parametrize("zero_points", [ZeroPoints.ABSENT, ZeroPoints.PACKED, ZeroPoints.FLOAT])
@pytest.mark.parametrize("value", [np.nan, np.inf, -70000.0])
def test_scales_beyond_fp16_are_refused_by_name(zero_points: ZeroPoints, value: float) -> None:
    storage = SeparateStorage(4, 16, StorageType.F32, zero_points)
    tensor = random_tensor(storage, (5, 40), 0)
    scales = np.ones((5, 3))
    scales[3, 1] = value
    broken = Tensor(
        "weight",
        storage,
        (5, 40),
        tensor.rows,
        "toy.onnx",
        stored_floats(StorageType.F32, scales),
        tensor.zero_points,
    )
    with pytest.raises(ModelFileError, match=r"toy\.onnx: weight row 3: the scale of block 1 is"):
        to_matrix(broken)


def test_zero_points_beyond_fp16_are_refused_by_name() -> None:
    storage = SeparateStorage(8, 16, StorageType.F32, ZeroPoints.FLOAT)
    tensor = random_tensor(storage, (2, 40), 0)
    zero_points = np.zeros((2, 3))
    zero_points[1, 2] = np.nan
    broken = Tensor(
        "weight", storage, (2, 40), tensor.rows, "toy.onnx", tensor.scales, stored_floats(StorageType.F32, zero_points)
    )
    with pytest.raises(ModelFileError, match=r"toy\.onnx: weight row 1: the offset of block 2 is"):
        to_matrix(broken)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (16, 16),
        (32, 32),
        (48, 16),
        (96, 32),
        (256, 256),
        (512, 256),
        (576, 64),
        (896, 128),
        (577, 32),
        (60, 64),
        (1, 32),
    ],
)
def test_blocks_are_split_into_the_largest_that_kernels_know(block: int, expected: int) -> None:
    assert packed_as(SeparateStorage(4, block, StorageType.F16, ZeroPoints.ABSENT)).block == expected


def test_names_bytes_and_bits() -> None:
    storage = SeparateStorage(4, 128, StorageType.F32, ZeroPoints.PACKED)
    assert (storage.name, storage.bits_per_weight, storage.is_float) == ("W4B128-F32-Z", 4 + 36 / 128, False)
    assert storage.row_bytes(129) == (128, 8, 1)
    assert storage.row_bytes(512 + 1) == (320, 20, 3)
    assert SeparateStorage(2, 16, StorageType.BF16, ZeroPoints.FLOAT).row_bytes(17) == (8, 4, 4)
    assert SeparateStorage(8, 16, StorageType.F16, ZeroPoints.ABSENT).row_bytes(17) == (32, 4)
    assert SeparateStorage(2, 5, StorageType.F16, ZeroPoints.ABSENT).row_bytes(5) == (2, 2)
    assert SeparateStorage(2, 16, StorageType.BF16, ZeroPoints.FLOAT).name == "W2B16-BF16-ZF"
    with pytest.raises(ValueError, match=re.escape("blocks of 24: expected a multiple of 16, or all of K = 25")):
        SeparateStorage(4, 24, StorageType.F16, ZeroPoints.ABSENT).row_bytes(25)


@pytest.mark.parametrize(("bits", "block", "scales"), [(3, 32, "F32"), (4, 0, "F32"), (4, -16, "F32"), (4, 32, "Q8_0")])
def test_storages_that_do_not_exist(bits: int, block: int, scales: str) -> None:
    with pytest.raises(ValueError, match="no such storage"):
        SeparateStorage(bits, block, StorageType[scales], ZeroPoints.ABSENT)


def test_rows_in_another_order() -> None:
    for storage in SEPARATE:
        tensor = random_tensor(storage, (4, 100), 3)
        order = np.array([2, 0, 3, 1])
        np.testing.assert_array_equal(dequantise(tensor.take_rows(order)), dequantise(tensor)[order])
        assert tensor.stored_bytes == sum(4 * count for count in storage.row_bytes(100))
