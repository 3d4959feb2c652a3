"""Guards against: packing that moves, drops or changes weights, and scales that overflow unnoticed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nybble import _native
from nybble.errors import ModelFileError
from nybble.quant.blocks import dequantise
from nybble.quant.matrix import to_matrix
from nybble.quant.packing_rules import packed_as
from nybble.quant.storage import BlockStorage, SeparateStorage, Storage, StorageType, ZeroPoints
from nybble.quant.tensor import Tensor
from tests.quant.stored import PLAIN, QUANTISED, SEPARATE, random_tensor, set_factor

from .programs import OpProgram, bits, float_tensor, pack, pool, sweep

LAYOUTS = ("panel32", "panel32k8", "panel32k16", "panel32k32")
FLOATS = tuple(storage for storage in StorageType if storage.is_float)
STACKS = [
    [left, right]
    for left in StorageType
    for right in StorageType
    if _native.packed_format(left.name) == _native.packed_format(right.name)
]
"""Types that may be rows of one packed matrix."""
NO_SEPARATE = ("W4B-F32", "W4B0-F32", "W4B032-F32", "W4B32-F64", "W4B32-F32Z", "W4B32-F32-ZFF", "W3B32-F32", "W4B32-")


def any_tensor(storage: StorageType, rows: int, blocks: int, seed: int) -> Tensor:
    if storage.is_float:
        values = np.random.default_rng(seed).normal(size=(rows, blocks))
        return float_tensor(values, storage)
    return random_tensor(storage, (rows, blocks * storage.block_elements), seed)


def weights_of(tensor: Tensor) -> NDArray[np.float32]:
    """What the packed form means: scale · code + offset without an error, then rounded once to fp32."""
    exact = dequantise(tensor) if tensor.storage.is_float else to_matrix(tensor).dequantise()
    return exact.astype(np.float32)


def is_legal(tensor: Tensor, row: int) -> bool:
    """Whether the rules in Python convert this row."""
    try:
        to_matrix(tensor.matrix_of_rows(slice(row, row + 1)))
    except ModelFileError:
        return False
    return True


def packing(*parts: Tensor) -> tuple[int, int] | None:
    """The (part, row) that packing refuses, or None."""
    n, k = sum(part.shape[0] for part in parts), parts[0].shape[1]
    memory = _native.WeightMemory(_native.packed_bytes(parts[0].storage.name, n, k))
    return _native.pack(memory, 0, [(part.storage.name, part.arrays) for part in parts], k, pool(2))[1]


@pytest.mark.parametrize("storage", [*StorageType, *PLAIN, *SEPARATE], ids=lambda storage: storage.name)
def test_formats_are_those_of_the_rules(storage: Storage) -> None:
    """Python plans with ``packed_as``, C++ packs with its own table: they must agree."""
    rule = packed_as(storage)
    weights = {
        (2, False): "w2",
        (4, False): "w4",
        (8, False): "w8",
        (32, True): "f32",
        (16, True): storage.name.lower(),
    }
    expected = (weights[rule.bits, rule.is_float], rule.block, rule.has_offsets)
    assert _native.packed_format(storage.name) == expected


@sweep(60)
@example([StorageType.Q4_1, StorageType.Q4_K], [33, 31], 2, 3)
@example([StorageType.Q6_K, StorageType.Q6_K], [1, 1], 1, 1)
@given(
    storages=st.sampled_from(STACKS),
    counts=st.lists(st.integers(1, 70), min_size=2, max_size=2),
    blocks=st.integers(1, 3),
    threads=st.sampled_from([1, 2, 3]),
)
def test_rows_read_back_what_was_stored(
    storages: list[StorageType], counts: list[int], blocks: int, threads: int
) -> None:
    """Exactly, for parts that begin and end anywhere within a panel of 32 channels."""
    elements = max(storage.block_elements for storage in storages)
    parts = [
        any_tensor(storage, count, blocks * elements // storage.block_elements, seed)
        for seed, (storage, count) in enumerate(zip(storages, counts, strict=True))
    ]
    matrix = pack(*parts, threads=threads)
    expected = np.concatenate([weights_of(part) for part in parts])
    assert (matrix.n, matrix.k) == expected.shape
    assert matrix.bytes == _native.packed_bytes(storages[0].name, matrix.n, matrix.k)
    np.testing.assert_array_equal(matrix.rows(0, matrix.n), expected)
    np.testing.assert_array_equal(matrix.rows(counts[0], matrix.n), expected[counts[0] :])


@pytest.mark.parametrize("storage", FLOATS, ids=lambda storage: storage.name)
def test_every_float_survives_bit_for_bit(storage: StorageType) -> None:
    """All 16-bit patterns, and as many of 32 bits; NaN stays NaN."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    octets = (patterns * 65537 + 1 if storage is StorageType.F32 else patterns.astype("<u2")).view(np.uint8)
    tensor = Tensor("weight", storage, (256, 256), octets.reshape(256, -1), "toy.gguf")
    found, expected = pack(tensor).rows(0, 256), dequantise(tensor)
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(bits(found)[finite], bits(expected)[finite])
    assert np.isnan(found[~finite]).all()


@pytest.mark.parametrize("storage", [storage for storage in QUANTISED if packed_as(storage).exact])
def test_every_fp16_scale_survives(storage: StorageType) -> None:
    """All 63,488 finite scales, denormals among them."""
    scales = np.arange(1 << 16, dtype="<u2")
    scales = scales[np.isfinite(scales.view("<f2"))].reshape(-1, 64)
    tensor = random_tensor(storage, (len(scales), 64 * 32), 0)
    octets = tensor.rows.reshape(len(scales), 64, -1).copy()
    octets[:, :, :2] = scales[..., None].view(np.uint8)
    tensor = Tensor("weight", storage, tensor.shape, octets.reshape(len(scales), -1), "toy.gguf")
    np.testing.assert_array_equal(pack(tensor).rows(0, len(scales)), weights_of(tensor))


@pytest.mark.parametrize(
    ("storage", "place", "value"),
    [
        (StorageType.Q4_0, 0, np.inf),
        (StorageType.Q4_1, 0, -np.inf),
        (StorageType.Q4_1, 2, np.nan),
        (StorageType.Q5_0, 0, np.nan),
        (StorageType.Q5_1, 2, np.inf),
        (StorageType.Q8_0, 0, np.nan),
        (StorageType.Q4_K, 0, 60000.0),  # finite until multiplied with a 6-bit factor
        (StorageType.Q4_K, 2, np.nan),
        (StorageType.Q5_K, 2, 60000.0),
        (StorageType.Q6_K, 208, 60000.0),
    ],
)
def test_a_scale_that_is_not_finite_is_reported_with_its_part_and_row(
    storage: StorageType, place: int, value: float
) -> None:
    good = random_tensor(storage, (40, 512), 0)
    bad = set_factor(set_factor(good, 37, 1, place, value), 39, 0, place, value)
    with pytest.raises(ModelFileError, match="row 37"):
        to_matrix(bad)
    assert packing(good, bad) == (1, 37)
    assert packing(bad, good) == (0, 37)
    assert packing(good, good) is None


@sweep(60)
@given(storage=st.sampled_from(QUANTISED), rows=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_any_bytes_are_packed_or_refused_like_the_rules_say(storage: StorageType, rows: int, seed: int) -> None:
    tensor = random_tensor(storage, (rows, storage.block_elements), seed, largest=None)
    refused = [row for row in range(rows) if not is_legal(tensor, row)]
    assert packing(tensor) == ((0, refused[0]) if refused else None)
    if not refused:
        np.testing.assert_array_equal(pack(tensor).rows(0, rows), weights_of(tensor))


def test_matrices_share_memory_without_touching_each_other() -> None:
    tensors = [random_tensor(storage, (33, 512), seed) for seed, storage in enumerate(QUANTISED)]
    sizes = [_native.packed_bytes(tensor.storage.name, *tensor.shape) for tensor in tensors]
    offsets = np.cumsum([0, *(-(-size // 64) * 64 for size in sizes)])
    memory = _native.WeightMemory(int(offsets[-2]) + sizes[-1])
    matrices = [
        _native.pack(memory, int(offset), [(tensor.storage.name, tensor.arrays)], 512, pool(2))[0]
        for offset, tensor in zip(offsets[:-1], tensors, strict=True)
    ]
    del memory  # kept alive by its matrices
    for matrix, tensor in zip(matrices, tensors, strict=True):
        np.testing.assert_array_equal(matrix.rows(0, 33), weights_of(tensor))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("storage", PLAIN, ids=lambda storage: storage.name)
def test_plain_blocks_of_any_size(storage: Storage, layout: str) -> None:
    """Also with a K that ends within a block; what the file has behind it must not matter."""
    if not _native.can_pack(storage.name, layout):
        with pytest.raises(ValueError, match="no such weights"):
            pack(random_tensor(storage, (33, 16), 0), layout=layout)
        return
    for k in (1, storage.block_elements - 1, storage.block_elements, 2 * storage.block_elements + 7):
        tensor = random_tensor(storage, (33, k), k)
        np.testing.assert_array_equal(pack(tensor, layout=layout).rows(0, 33), weights_of(tensor))
        other = replace(tensor, rows=random_tensor(storage, (33, k), k + 1).rows)
        found, expected = pack(other, layout=layout), pack(tensor, layout=layout)
        assert not np.array_equal(found.rows(0, 33), expected.rows(0, 33))


def test_what_a_layout_knows() -> None:
    """Blocks that are whole lines, or what lies of one channel in a line that channels share; floats only in the first
    layout; halves of activations are for 4-bit codes.
    """
    depths = {"panel32": 4, "panel32k8": 8, "panel32k16": 16, "panel32k32": 16}
    for storage in (*PLAIN, *FLOATS):
        weights, block, _ = _native.packed_format(storage.name)
        for layout in LAYOUTS:
            if storage in FLOATS:
                expected = layout == "panel32"
            else:
                line = depths[layout] * (1 if layout == "panel32k16" else 8 // int(weights[1:]))
                expected = block % line == 0
                expected &= weights == "w4" or layout != "panel32k32"
                expected &= weights != "w2" or layout != "panel32k16"
            assert _native.can_pack(storage.name, layout) == expected
    with pytest.raises(ValueError, match="unknown layout"):
        _native.can_pack("W4B32", "panel33")


@pytest.mark.parametrize("k", [1, 512, 4096, 11008])
@pytest.mark.parametrize("storage", PLAIN, ids=lambda storage: storage.name)
def test_panels_of_a_shared_cache_begin_in_different_sets(storage: Storage, k: int) -> None:
    """At most a cache line longer than they need to be, and an odd number of lines: no two of 2^n panels meet."""
    if not _native.can_pack(storage.name, "panel32k8"):
        return
    size = _native.packed_bytes(storage.name, 1, k, layout="panel32k8")
    assert size % 128 == 64
    assert size - _native.packed_bytes(storage.name, 1, k) in (0, 64)
    assert _native.packed_bytes(storage.name, 65, k, layout="panel32k8") == 3 * size


@sweep(200)
@example(SEPARATE[0], 1, 33, 1)
@given(
    storage=st.sampled_from(SEPARATE), k=st.integers(1, 700), rows=st.integers(1, 70), threads=st.sampled_from([1, 2])
)
def test_codes_scales_and_zero_points_apart(storage: SeparateStorage, k: int, rows: int, threads: int) -> None:
    """Any K, within a block or behind it, and any number of rows: as the rules in Python convert them."""
    if storage.block % 16:
        k = min(k, storage.block)
    tensor = random_tensor(storage, (rows, k), k)
    matrix = pack(tensor, threads=threads)
    assert matrix.bytes == _native.packed_bytes(storage.name, rows, k)
    np.testing.assert_array_equal(matrix.rows(0, rows), weights_of(tensor))


@pytest.mark.parametrize("storage", SEPARATE, ids=lambda storage: storage.name)
@sweep(10)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_scales_apart_are_packed_or_refused_like_the_rules_say(storage: SeparateStorage, seed: int) -> None:
    """Any bits for scales and zero points: NaN, infinities, and numbers too large or too small for fp16."""
    tensor = random_tensor(storage, (5, 100), seed, largest=None)
    refused = [row for row in range(5) if not is_legal(tensor, row)]
    assert packing(tensor) == ((0, refused[0]) if refused else None)
    for row in set(range(5)) - set(refused):
        part = tensor.matrix_of_rows(slice(row, row + 1))
        np.testing.assert_array_equal(pack(part).rows(0, 1), weights_of(part))


@pytest.mark.parametrize("storage", [*QUANTISED, *PLAIN, *SEPARATE], ids=lambda storage: storage.name)
def test_wide_scales(storage: Storage) -> None:
    """What the file means, but for rounding a product or an offset to fp32: no scale is rounded to fp16."""
    k = storage.block_elements * 2
    if isinstance(storage, SeparateStorage):
        k = k - 5 if storage.block % 16 == 0 else storage.block
    tensor = replace(random_tensor(storage, (33, k), 5), wide_scales=True)
    matrix = pack(tensor)
    assert matrix.bytes == _native.packed_bytes(storage.name, 33, k, True)
    found = matrix.rows(0, 33)
    np.testing.assert_array_equal(found, weights_of(tensor))
    exact = dequantise(tensor)
    np.testing.assert_allclose(found, exact, rtol=0, atol=2.0**-22 * np.abs(exact).max() * 2 ** packed_as(storage).bits)
    if packed_as(storage).exact:
        np.testing.assert_array_equal(found, pack(replace(tensor, wide_scales=False)).rows(0, 33))


@pytest.mark.parametrize("value", [1e6, -3e35, 1e-30, np.inf, np.nan])
def test_wide_scales_hold_what_fp16_does_not(value: float) -> None:
    storage = SeparateStorage(4, 32, StorageType.F32, ZeroPoints.ABSENT)
    tensor = random_tensor(storage, (5, 64), 0)
    assert tensor.scales is not None
    scales = tensor.scales.copy().view("<f4")
    scales[3, 1] = value
    tensor = replace(tensor, scales=scales.view(np.uint8))
    name, arrays = storage.name, tensor.arrays
    memory = _native.WeightMemory(_native.packed_bytes(name, 5, 64, True))
    refused = _native.pack(memory, 0, [(name, arrays)], 64, pool(1), True)[1]
    assert refused == (None if np.isfinite(value) else (0, 3))
    if np.isfinite(value):
        wide = replace(tensor, wide_scales=True)
        np.testing.assert_array_equal(pack(wide).rows(0, 5), weights_of(wide))


def test_int8_activations_do_not_meet_wide_scales() -> None:
    """Guards against a kernel that reads fp32 scales as fp16."""
    tensor = replace(random_tensor(StorageType.Q4_K, (32, 256), 0), wide_scales=True)
    program = OpProgram(1, "portable")
    codes = program.new(256, block=32)
    program.native.quantise("quantise", program.new(256), codes)
    with pytest.raises(ValueError, match="fp16 scales"):
        program.native.linear(
            "linear", codes, pack(tensor), "linear_w4_int8_panel32_portable", program.new(32), None, None
        )


@pytest.mark.parametrize("zero_points", ZeroPoints)
def test_scales_apart_must_belong_to_the_codes(zero_points: ZeroPoints) -> None:
    """Arrays too few, too many, too short, of other rows; and blocks that would begin within a vector."""
    storage = SeparateStorage(4, 32, StorageType.F32, zero_points)
    arrays = random_tensor(storage, (4, 64), 0).arrays
    memory = _native.WeightMemory(_native.packed_bytes(storage.name, 64, 64))
    wrong = [arrays[:-1], (*arrays, arrays[-1])]
    for index, array in enumerate(arrays):
        for cut in (array[:, :-1], array[:-1], np.pad(array, ((0, 0), (0, 1))), array[:0]):
            wrong.append((*arrays[:index], np.ascontiguousarray(cut), *arrays[index + 1 :]))
    for parts in wrong:
        with pytest.raises(ValueError, match="row bytes"):
            _native.pack(memory, 0, [(storage.name, parts)], 64, pool(1))
    whole_row = SeparateStorage(4, 60, StorageType.F32, zero_points)
    parts = random_tensor(whole_row, (4, 60), 0).arrays
    with pytest.raises(ValueError, match="no multiple of 16"):
        _native.pack(memory, 0, [(whole_row.name, parts)], 61, pool(1))


def test_one_packed_matrix_of_scales_in_blocks_and_apart() -> None:
    """Stacked as one matrix, as merged linears of a file that mixes types would be."""
    storages = (BlockStorage(4, 32, True), SeparateStorage(4, 32, StorageType.F16, ZeroPoints.PACKED))
    parts = [random_tensor(storage, (33, 70), seed) for seed, storage in enumerate(storages)]
    found = pack(*parts).rows(0, 66)
    np.testing.assert_array_equal(found, np.concatenate([weights_of(part) for part in parts]))


def test_what_cannot_be_packed_is_refused() -> None:
    tensor = random_tensor(StorageType.Q4_0, (4, 64), 0)
    other = random_tensor(StorageType.Q8_0, (4, 64), 0)
    part = (tensor.storage.name, tensor.arrays)
    memory = _native.WeightMemory(4096)

    def refused(match: str, parts: list[tuple[str, Sequence[NDArray[np.uint8]]]], k: int = 64, offset: int = 0) -> None:
        with pytest.raises(ValueError, match=match):
            _native.pack(memory, offset, parts, k, pool(1))

    refused("nothing", [])
    refused("nothing", [part], k=0)
    for name in ("Q4_2", "", "W4B", "W4B31", "W4B512", "W3B32", "W4B32B", "W4B032", *NO_SEPARATE):
        refused("unknown storage type", [(name, tensor.arrays)])
    refused("one packed format", [part, (other.storage.name, other.arrays)])
    refused("row bytes", [part], k=96)
    refused("row bytes", [part], k=65)
    refused("row bytes", [part], k=32)
    refused("row bytes", [(tensor.storage.name, [tensor.rows[:, :-1]])])
    refused("too small", [part], offset=4096)
    refused("too small", [part], offset=8)  # not on a cache line
    refused("too small", [(tensor.storage.name, [np.tile(tensor.rows, (32, 1))])])
    with pytest.raises(MemoryError):
        _native.packed_bytes(tensor.storage.name, 1 << 62, 1 << 62)
    matrix = pack(tensor)
    for begin, end in ((0, 5), (3, 2), (5, 5)):
        with pytest.raises(ValueError, match="range"):
            matrix.rows(begin, end)
    assert matrix.rows(4, 4).shape == (0, 64)
