"""Guards against: a kernel of the registry that nobody tested; products that are wrong for some shape, type or row.

Every kernel of the registry is a parameter here: one that is added is tested, or skipped because this CPU lacks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nybble import _native
from nybble.graph import reference
from nybble.quant.matrix import to_matrix
from nybble.quant.storage import BlockStorage, InBlocks, SeparateStorage, Storage, StorageType
from nybble.quant.tensor import Tensor
from tests.quant.stored import PLAIN, SEPARATE, random_tensor

from .programs import ISAS, UNIT, OpProgram, float_tensor, pack, sweep

KERNELS = {name: tuple(kind) for name, *kind in _native.linear_kernels()}
"""(instruction set, weights, activations, layout) by name."""
GROUP = reference.ACTIVATION_GROUP
FLOAT_WIDTHS = (1, 2, 3, 15, 16, 17, 31, 33, 48, 63, 65)
BLOCK_COUNTS = (1, 2, 3, 5, 7, 9, 17)
CHANNELS = (1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 97)
ROWS = (*range(1, 10), 13, 49, 97)


def kernels(*activations: str) -> list[object]:
    """Parameters for the kernels that read ``activations``; those this CPU cannot run are skipped."""
    return [
        pytest.param(name, marks=() if isa in ISAS else pytest.mark.skip(f"this CPU has no {isa}"))
        for name, (isa, _, reads, _) in KERNELS.items()
        if reads in activations
    ]


def storages(weights: str, layout: str) -> list[Storage]:
    """Every type that packs to ``weights`` in ``layout``."""
    return [
        storage
        for storage in (*StorageType, *PLAIN, *SEPARATE)
        if _native.packed_format(storage.name)[0] == weights and _native.can_pack(storage.name, layout)
    ]


@dataclass(frozen=True)
class Case:
    """A linear; ``in_place`` if its output overwrites its residual."""

    tensor: Tensor
    x: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    residual: NDArray[np.float32] | None
    in_place: bool

    def run(
        self,
        kernel: str,
        threads: int | _native.ThreadPool = 1,
        rows: list[int] | None = None,
        isas: Sequence[str] | None = None,
    ) -> NDArray[np.float32]:
        """The outputs (rows, N); threads with ``isas`` of their own take kernels of their own."""
        isa, _, activations, layout = KERNELS[kernel]
        m, n = len(self.x), self.tensor.shape[0]
        program = OpProgram(m, isas or isa, threads)
        output = program.guarded(self.residual if self.in_place else np.full((m, n), np.nan))
        residual = None
        if self.residual is not None:
            residual = output if self.in_place else program.guarded(self.residual)
        input = program.guarded(self.x)
        if activations == "int8":
            block = _native.packed_format(self.tensor.storage.name)[1]
            codes = program.new(self.x.shape[1], block, layout=layout)
            program.native.quantise("quantise", input, codes)
            input = codes
        packed = pack(self.tensor, layout=layout)
        program.native.linear("linear", input, packed, kernel, output, self.bias, residual)
        program.outputs(output, n)
        return program.run(rows)

    @property
    def added(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bias plus residual (M, N) or zeros, and the sum of their magnitudes."""
        total = magnitude = np.zeros((len(self.x), self.tensor.shape[0]))
        for part in (self.bias, self.residual):
            if part is not None:
                total, magnitude = total + part, magnitude + np.abs(part, dtype=np.float64)
        return total, magnitude


def check_int8(case: Case, isa: str, found: NDArray[np.float32]) -> None:
    """Compare with exact sums over the codes and scales the kernel was given.

    With u = 2⁻²⁴: a block's integer dot product is below 2²⁴, so exact as fp32. Each of B blocks (with offsets twice),
    G groups, O outliers (with offsets twice), bias and residual is one fused operation that rounds a partial sum, at
    most S, the sum of the magnitudes of all terms: in all (2B + G + 2O + 2) · u · S to first order; two more u cover
    the rest. Products that underflow add at most 2⁻¹⁴⁹ each.
    """
    matrix = to_matrix(case.tensor)
    block = min(matrix.block, GROUP)
    codes, scales, sums, outliers = _native.quantise_rows(isa, case.x, block)
    n, blocks, of_group = len(matrix.codes), sums.shape[1], GROUP // block
    factors, offsets = (
        None if part is None else np.repeat(part, matrix.block // block, axis=1)[:, :blocks].T.astype(np.float64)
        for part in (matrix.scales, matrix.offsets)
    )
    width = blocks * block
    codes, unrounded = (
        np.pad(part.astype(np.float64), ((0, 0), (0, width - part.shape[1]))) for part in (codes, outliers)
    )
    zero_point = 0 if offsets is not None else 1 << (matrix.bits - 1)
    weights = matrix.codes.astype(np.float64)[:, :width] - zero_point
    weights = np.pad(weights, ((0, 0), (0, width - weights.shape[1]))).reshape(n, blocks, block).transpose(1, 2, 0)
    dots = codes.reshape(-1, blocks, block).swapaxes(0, 1) @ weights  # (blocks, M, N)
    of_block = np.repeat(scales.T.astype(np.float64), of_group, axis=0)[:blocks, :, None]
    terms = [dots * factors[:, None, :] * of_block]
    decoded = weights * factors[:, None, :]
    kept = unrounded @ decoded.reshape(width, n)
    magnitude = np.abs(unrounded) @ np.abs(decoded).reshape(width, n)
    if offsets is not None:
        added = sums.T.astype(np.float64)[:, :, None] * offsets[:, None, :]
        terms.append(added * of_block)
        repeated = np.repeat(offsets, block, axis=0)
        kept, magnitude = kept + unrounded @ repeated, magnitude + np.abs(unrounded) @ np.abs(repeated)
    total = sum(term.sum(axis=0) for term in terms) + kept
    magnitude = magnitude + sum(np.abs(term).sum(axis=0) for term in terms) + case.added[1]
    operations = 2 * blocks + scales.shape[1] + 2 * np.count_nonzero(outliers, axis=1).max() + 2
    bound = (operations + 2) * UNIT * magnitude + 2 * blocks * 2.0**-149
    assert (np.abs(found - (total + case.added[0])) <= bound).all()


def check_f32(case: Case, found: NDArray[np.float32]) -> None:
    """Compare with exact sums over the decoded weights.

    Even and odd k have a sum each, of at most n = ceil(K / 2) fused operations. A sum of n rounded additions is within
    n·u / (1 - n·u) of exact, relative to the sum of magnitudes; adding the two, the bias and the residual makes n + 3.
    Products that underflow add at most 2⁻¹⁴⁹ each.
    """
    weights = pack(case.tensor).rows(0, case.tensor.shape[0]).astype(np.float64)
    x = case.x.astype(np.float64)
    roundings = (-(-x.shape[1] // 2) + 3) * UNIT
    magnitude = np.abs(x) @ np.abs(weights).T + case.added[1]
    bound = roundings / (1 - roundings) * magnitude + x.shape[1] * 2.0**-149
    assert (np.abs(found - (x @ weights.T + case.added[0])) <= bound).all()


def case_of(storage: Storage, k: int, n: int, m: int, bias: bool, residual: str | None, seed: int = 0) -> Case:
    """Random weights and activations, rows of very different sizes and outliers among them."""
    random = np.random.default_rng(seed)
    if storage.is_float:
        tensor = float_tensor(random.normal(size=(n, k)), storage)
    else:
        tensor = random_tensor(storage, (n, k), seed)
    x = (random.normal(size=(m, k)) * 10.0 ** random.integers(-3, 4, (m, 1))).astype(np.float32)
    x[random.random(x.shape) < 0.03] *= 20
    return Case(
        tensor,
        x,
        random.normal(size=n).astype(np.float32) if bias else None,
        random.normal(size=(m, n)).astype(np.float32) if residual else None,
        residual == "in place",
    )


@st.composite
def cases(draw: st.DrawFn, weights: str, layout: str) -> Case:
    storage = draw(st.sampled_from(storages(weights, layout)))
    k = (
        draw(st.sampled_from(FLOAT_WIDTHS))
        if storage.is_float
        else storage.block_elements
        * draw(st.sampled_from(BLOCK_COUNTS[:3] if storage.block_elements > 32 else BLOCK_COUNTS))
    )
    if isinstance(storage, SeparateStorage) and storage.block % 16 != 0:
        k = storage.block
    if not isinstance(storage, StorageType):
        k -= draw(st.sampled_from([0, 1, 7, 15]))
    return case_of(
        storage,
        k,
        draw(st.sampled_from(CHANNELS)),
        draw(st.sampled_from(ROWS)),
        draw(st.booleans()),
        draw(st.sampled_from([None, "apart", "in place"])),
        draw(st.integers(0, 1000)),
    )


def corners(weights: str, layout: str) -> list[Case]:
    """Each type once at its smallest, and once with every remainder: of a panel, a vector, a tile and a split."""
    found = []
    for storage in storages(weights, layout):
        block = storage.block_elements
        if isinstance(storage, SeparateStorage):
            found.append(case_of(storage, min(block, 100) - 3, 33, 7, True, None))
            continue
        if isinstance(storage, BlockStorage):
            found.append(case_of(storage, 2 * block + 5, 33, 7, True, "apart"))
            found.append(case_of(storage, block - 3, 33, 1, False, None))
            continue
        found.append(case_of(storage, block, 1, 1, False, None))
        found.append(case_of(storage, 65 if storage.is_float else 3 * block, 97, 97, True, "apart"))
        found.append(case_of(storage, 3 * block, 33, 7, True, "in place"))
    return found


def check(kernel: str, case: Case) -> None:
    isa, _, activations, _ = KERNELS[kernel]
    if activations == "int8":
        check_int8(case, isa, case.run(kernel))
    else:
        check_f32(case, case.run(kernel))


@pytest.mark.parametrize("kernel", kernels("int8", "f32"))
def test_corners(kernel: str) -> None:
    _, weights, _, layout = KERNELS[kernel]
    for case in corners(weights, layout):
        check(kernel, case)


@pytest.mark.parametrize("kernel", kernels("int8", "f32"))
@sweep(150)
@given(data=st.data())
def test_any_shape(kernel: str, data: st.DataObject) -> None:
    _, weights, activations, layout = KERNELS[kernel]
    case = data.draw(cases(weights, layout))
    if activations == "f32" and not case.tensor.storage.is_float:
        case = replace(case, tensor=replace(case.tensor, wide_scales=data.draw(st.booleans())))
    check(kernel, case)


def test_each_instruction_set_of_this_cpu_has_every_kernel() -> None:
    """What was tested above, and that nothing of the registry was left out."""
    kinds = {(weights, activations) for _, weights, activations, _ in KERNELS.values()}
    assert kinds == {
        *((weights, "int8") for weights in ("w2", "w4", "w8")),
        *((weights, "f32") for weights in ("w2", "w4", "w8", "f16", "bf16", "f32")),
    }
    assert "portable" in ISAS
    for isa in ISAS:
        assert {(weights, activations) for of, weights, activations, _ in KERNELS.values() if of == isa} == kinds
    assert all(storages(weights, layout) for _, weights, _, layout in KERNELS.values())
    assert len(kernels("int8", "f32")) == len(KERNELS)


@pytest.mark.parametrize("kernel", kernels("int8"))
@sweep(12)
@example(m=1, n=33, blocks=16, signs="same")
@example(m=7, n=33, blocks=16, signs="same")
@given(
    m=st.sampled_from([1, 2, 6, 7]),
    n=st.sampled_from([1, 32, 33]),
    blocks=st.integers(1, 16),
    signs=st.sampled_from(["same", "alternating", "random"]),
)
def test_no_dot_product_saturates(kernel: str, m: int, n: int, blocks: int, signs: str) -> None:
    """Activations at ±127, weight codes at the ends of their range, scales of 1: the sums are integers, and exact."""
    weights = KERNELS[kernel][1]
    random = np.random.default_rng(blocks)
    k = 32 * blocks
    pattern = {
        "same": np.ones((m, k)),
        "alternating": np.tile([1.0, -1.0], (m, k // 2)),
        "random": random.choice([-1.0, 1.0], (m, k)),
    }[signs]
    of_weights: dict[str, tuple[InBlocks, ...]] = {
        "w2": (BlockStorage(2, 32, False), BlockStorage(2, 32, True)),
        "w4": (StorageType.Q4_0, StorageType.Q4_1),
        "w8": (StorageType.Q8_0, StorageType.Q5_1),
    }
    for storage in of_weights[weights]:
        tensor = extreme_tensor(storage, n, k, random)
        x = (127 * pattern).astype(np.float32)
        exact = x.astype(np.float64) @ pack(tensor).rows(0, n).astype(np.float64).T
        assert np.abs(exact).max() < 2**24
        found = Case(tensor, x, None, None, False).run(kernel)
        np.testing.assert_array_equal(found, exact)


def extreme_tensor(storage: InBlocks, n: int, k: int, random: np.random.Generator) -> Tensor:
    """Codes all lowest, all highest, or either at random, by rows; scale 1 and offset 0 or 1."""
    octets = np.zeros((n, k // 32, storage.block_bytes), np.uint8)
    octets[:, :, :2] = np.array([1], "<f2").view(np.uint8)
    codes = octets[:, :, 4 if storage in (StorageType.Q4_1, StorageType.Q5_1, BlockStorage(2, 32, True)) else 2 :]
    codes[...] = random.choice([0, 255], codes.shape)
    codes[0::3], codes[1::3] = 0, 255
    if storage is StorageType.Q8_0:  # int8: the ends are -128 and 127
        codes ^= 128
    if storage is StorageType.Q4_1:
        octets[:, :, 2:4] = np.array([1], "<f2").view(np.uint8)
    return Tensor("weight", storage, (n, k), octets.reshape(n, -1), "toy.gguf")
