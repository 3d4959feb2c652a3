"""Guards against: norms, activations and rotations that lose accuracy, or read or write beside their row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nybble.graph.reference import rms_norm, rotate, silu
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor

from .programs import ISAS, UNIT, OpProgram, bits, pack, sweep

TINY = 2.0**-149
"""The spacing of fp32 denormals: what a product that underflows may be wrong by."""

each_isa = pytest.mark.parametrize("isa", ISAS)


def one_op(
    isa: str, width: int, inputs: list[NDArray[np.floating]], add: Callable[..., None], threads: int = 1
) -> NDArray[np.float32]:
    """The output, ``width`` wide, of the op that ``add(program, *inputs, output)`` adds."""
    program = OpProgram(len(inputs[0]), isa, threads)
    output = program.guarded(np.full((len(inputs[0]), width), np.nan))
    add(program.native, *(program.guarded(values) for values in inputs), output)
    program.outputs(output, width)
    return program.run()


def norm_roundings(group: int) -> float:
    """Relative error of an RMS norm in units of 2⁻²⁴.

    The squares are summed in 16 lanes, n = ceil(group / 16) fused operations each, then in 4 halvings: n + 4 roundings
    of a sum of positives, one for the mean and one for adding epsilon. The root halves that, and rounds; the inverse
    and the two products round once each. One more covers second orders.
    """
    return (-(-group // 16) + 6) / 2 + 5


@sweep(60)
@example(groups=1, group=1, exponent=0, epsilon=0.0, seed=0)
@example(groups=1, group=576, exponent=0, epsilon=1e-5, seed=0)
@example(groups=3, group=80, exponent=18, epsilon=1e-6, seed=0)
@given(
    groups=st.integers(1, 4),
    group=st.integers(1, 140),
    exponent=st.integers(-44, 18),
    epsilon=st.sampled_from([1e-5, 1e-6]),
    seed=st.integers(0, 1000),
)
def test_rms_norm(groups: int, group: int, exponent: int, epsilon: float, seed: int) -> None:
    """Over the whole width and per head, at any magnitude whose squares are finite."""
    random = np.random.default_rng(seed)
    epsilon = float(np.float32(epsilon))
    x = (random.normal(size=(3, groups * group)) * 10.0**exponent).astype(np.float32)
    weight = random.normal(1, 0.5, group).astype(np.float32)
    exact = rms_norm(x.astype(np.float64).reshape(3, groups, group), weight.astype(np.float64), epsilon)
    exact = exact.reshape(x.shape)
    expected = None
    for isa in ISAS:
        found = one_op(isa, x.shape[1], [x], lambda program, a, to: program.rms_norm("norm", a, weight, to, epsilon))
        assert (np.abs(found - exact) <= norm_roundings(group) * UNIT * np.abs(exact) + 2 * TINY).all()
        expected = bits(found) if expected is None else expected
        np.testing.assert_array_equal(bits(found), expected)


@each_isa
def test_a_norm_whose_squares_overflow_is_not_zero(isa: str) -> None:
    """1 / sqrt(inf) would quietly switch the layer off."""
    x, weight = np.full((1, 20), 1e20, np.float32), np.ones(20, np.float32)
    found = one_op(isa, 20, [x], lambda program, a, to: program.rms_norm("norm", a, weight, to, 1e-5))
    assert np.isnan(found).all()


MAGNITUDES = (0.0, 1e-45, 1e-38, 1, 20, 86.9, 87, 88, 88.37, 88.38, 88.5, 88.8, 89, 100, 1e4, 1e20, 1e30, 1e38, 3.4e38)
GATES = np.array([sign * magnitude for magnitude in MAGNITUDES for sign in (1, -1)], np.float32)


def check_swiglu(gate: NDArray[np.float32], up: NDArray[np.float32]) -> None:
    """Compare silu(gate) · up with fp64, and all instruction sets with each other.

    eˣ is good to u = 2⁻²⁴ twice over: of eʳ, |r| ≤ ln 2 / 2, the last two operations of the polynomial cost u and
    0.35u, all before 0.1u, the rounded r 0.26u and the polynomial's end 0.13u. Adding 1, dividing and multiplying round
    once each. Where e⁻ᵍ leaves fp32, silu, then less than 4e-37 in magnitude, may come out as 0.
    """
    with np.errstate(over="ignore"):
        exact = silu(gate.astype(np.float64)) * up.astype(np.float64)
    bound = 5.01 * UNIT * np.abs(exact) + 4e-37 * np.abs(up, dtype=np.float64) + TINY
    expected = None
    for isa in ISAS:
        found = one_op(isa, gate.shape[1], [gate, up], lambda program, a, b, to: program.swiglu("swiglu", a, b, to))
        assert (np.abs(found - exact) <= bound).all()
        expected = bits(found) if expected is None else expected
        np.testing.assert_array_equal(bits(found), expected)


def test_swiglu_at_the_edges() -> None:
    """Zeros of both signs, denormals, where the exponential leaves fp32, and the largest numbers there are."""
    gate = np.tile(GATES, (3, 1))
    check_swiglu(gate, np.repeat([[1.0], [-0.5], [0.0]], len(GATES), axis=1).astype(np.float32))
    zeros = np.array([[0.0, -0.0]], np.float32)
    for isa in ISAS:
        found = one_op(
            isa, 2, [zeros, np.ones_like(zeros)], lambda program, a, b, to: program.swiglu("swiglu", a, b, to)
        )
        np.testing.assert_array_equal(bits(found), bits(zeros))


def test_the_exponential_is_accurate_everywhere() -> None:
    """Through SwiGLU: a dense grid over all of its range, and densest where the reduction changes its integer."""
    grid = np.linspace(-88.3, 88.3, 20001)
    halves = (np.arange(-127, 127) + 0.5) * np.log(2)
    near = np.concatenate([np.nextafter(np.float32(halves), np.float32(side)) for side in (-np.inf, np.inf)])
    gate = np.concatenate([grid.astype(np.float32), near, np.float32(halves)])
    check_swiglu(gate[None], np.ones((1, len(gate)), np.float32))


@sweep(40)
@given(width=st.integers(1, 100), exponent=st.integers(-44, 2), seed=st.integers(0, 1000))
def test_swiglu(width: int, exponent: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    gate = (random.normal(size=(3, width)) * 10.0**exponent).astype(np.float32)
    check_swiglu(gate, random.normal(size=(3, width)).astype(np.float32))


@each_isa
@pytest.mark.parametrize("width", [1, 15, 16, 17, 40])
def test_add_is_exact(isa: str, width: int) -> None:
    random = np.random.default_rng(width)
    left, right = random.normal(size=(2, 3, width)).astype(np.float32)
    found = one_op(isa, width, [left, right], lambda program, a, b, to: program.add("add", a, b, to))
    np.testing.assert_array_equal(bits(found), bits(left + right))


@sweep(60)
@example(head_dim=2, heads=1, kv_heads=1, norms="qk", first=0, seed=0)
@given(
    head_dim=st.sampled_from([2, 4, 6, 16, 30, 48, 64, 80, 96, 128, 256]),
    heads=st.integers(1, 3),
    kv_heads=st.integers(1, 2),
    norms=st.sampled_from(["", "q", "k", "qk"]),
    first=st.sampled_from([0, 1, 700]),
    seed=st.integers(0, 1000),
)
def test_rotation_of_the_query(head_dim: int, heads: int, kv_heads: int, norms: str, first: int, seed: int) -> None:
    """RotateAppend's output, with and without norms, from position ``first`` on.

    Sine and cosine are rounded once, so is each product, and then their sum: 3 roundings of |x·c| + |y·s|, after those
    of the norm.
    """
    random = np.random.default_rng(seed)
    rows, epsilon = 3, float(np.float32(1e-5))
    query = random.normal(size=(rows, heads * head_dim)).astype(np.float32)
    key = random.normal(size=(rows, kv_heads * head_dim)).astype(np.float32)
    weight = random.normal(1, 0.2, head_dim).astype(np.float32)
    frequencies = 500.0 ** -(np.arange(head_dim // 2) * 2 / head_dim)
    exact = query.astype(np.float64)
    if "q" in norms:
        exact = rms_norm(exact.reshape(-1, head_dim), weight.astype(np.float64), epsilon).reshape(query.shape)
    positions = first + np.arange(rows)
    cosine, sine = np.cos(np.outer(positions, frequencies)), np.sin(np.outer(positions, frequencies))
    halves = np.abs(exact.reshape(rows, heads, 2, -1))
    sizes = halves * np.abs(cosine[:, None, None]) + halves[:, :, ::-1] * np.abs(sine[:, None, None])
    roundings = 3.01 + ("q" in norms) * norm_roundings(head_dim)
    exact = rotate(exact, positions, frequencies)
    expected = None
    for isa in ISAS:
        program = OpProgram(rows, isa, 1, 1, kv_heads, head_dim, frequencies.tolist())
        views = program.given(query, key, key)
        output = program.new(query.shape[1])
        norm = {"q": weight if "q" in norms else None, "k": weight if "k" in norms else None}
        program.native.rotate_append("rotate", 0, *views, output, norm["q"], norm["k"], epsilon)
        program.outputs(output, query.shape[1])
        cache = program.cache(first + rows)
        if first:
            program.run([0] * first, cache)
        found = program.run(cache=cache)
        assert (np.abs(found - exact) <= roundings * UNIT * sizes.reshape(exact.shape) + 4 * TINY).all()
        expected = bits(found) if expected is None else expected
        np.testing.assert_array_equal(bits(found), expected)


def identity(width: int) -> Tensor:
    """Q8_0 with scale 1: a linear that shows the int8 activations it is given, code · scale, exactly."""
    octets = np.zeros((width, width // 32, 34), np.uint8)
    octets[:, :, :2] = np.array([1], "<f2").view(np.uint8)
    octets.reshape(width, -1, 34)[np.arange(width), np.arange(width) // 32, 2 + np.arange(width) % 32] = 1
    return Tensor("identity", StorageType.Q8_0, (width, width), octets.reshape(width, -1), "toy.gguf")


@each_isa
@pytest.mark.parametrize("op", ["rms_norm", "swiglu"])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_op_that_quantises_equals_one_followed_by_quantise(isa: str, op: str, threads: int) -> None:
    """The fused epilogue gives the same bits as the op of its own."""
    rows, width = 70, 192
    random = np.random.default_rng(3)
    x, y = random.normal(size=(2, rows, width)).astype(np.float32)
    weight = np.ones(width, np.float32)
    found = []
    for fused in (False, True):
        program = OpProgram(rows, isa, threads)
        native = program.native
        codes = program.new(width, block=32)
        result = codes if fused else program.new(width)
        if op == "rms_norm":
            native.rms_norm(op, program.given(x)[0], weight, result, 1e-5)
        else:
            native.swiglu(op, *program.given(x, y), result)
        if not fused:
            native.quantise("quantise", result, codes)
        shown = program.new(width)
        native.linear("show", codes, pack(identity(width)), f"linear_w8_int8_panel32_{isa}", shown, None, None)
        program.outputs(shown, width)
        found.append(bits(program.run()))
    np.testing.assert_array_equal(found[0], found[1])


@each_isa
def test_outputs_are_selected_in_any_order_and_number(isa: str) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    program = OpProgram(4, isa)
    program.outputs(program.given(values)[0], 6)
    for rows in ([0], [3, 1], [2, 2, 2, 0, 1, 3], []):
        cache = program.cache(4)
        found = program.native.run([0, 1, 2, 3], [(cache, 4)], rows)
        np.testing.assert_array_equal(found, values[rows])
        assert cache.length == 4
