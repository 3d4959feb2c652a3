"""Guards against: attention that is inaccurate, unstable, or unlike in prefill and decode; misplaced keys and values.

RoPE frequencies are 0 where only attention is tested, so that queries and keys pass RotateAppend unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nybble.graph.reference import rms_norm, rotate

from .programs import ISAS, UNIT, OpProgram, bits, sweep

GROUPS = (1, 2, 3, 7, 8, 50)
HEAD_DIMS = (2, 4, 6, 16, 48, 64, 80, 96, 128, 256)
LENGTHS = (1, 2, 16, 17, 63, 64, 65, 100, 255, 256, 257, 300, 520)

each_isa = pytest.mark.parametrize("isa", ISAS)


@dataclass(frozen=True)
class Attended:
    """Queries (L, kv_heads · group · head_dim), keys and values (L, kv_heads · head_dim) of one sequence, fp32."""

    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]
    kv_heads: int
    head_dim: int
    scale: float
    kv: str = "fp16"

    def program(self, isa: str, threads: int = 1) -> OpProgram:
        program = OpProgram(len(self.query), isa, threads, 1, self.kv_heads, self.head_dim)
        query, key, value = program.given(self.query, self.key, self.value)
        turned = program.guarded(np.full_like(self.query, np.nan))
        program.native.rotate_append("append", 0, query, key, value, turned, None, None, 0.0)
        output = program.guarded(np.full_like(self.query, np.nan))
        heads = self.query.shape[1] // self.head_dim
        program.native.attention("attention", 0, turned, output, heads, self.scale)
        program.outputs(output, self.query.shape[1])
        return program

    def run(self, isa: str, threads: int = 1, pieces: list[int] | None = None) -> NDArray[np.float32]:
        """The outputs of all positions, appended in steps of ``pieces`` tokens (None: in one)."""
        program, length = self.program(isa, threads), len(self.query)
        cache = program.cache(length, self.kv)
        ends = np.cumsum(pieces or [length]).tolist()
        steps = [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        return np.concatenate([program.run(step, cache) for step in steps])

    def stored(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """What the cache keeps of ``rows``."""
        return ROUNDINGS[self.kv](rows, self.head_dim).astype(np.float64)

    def exact(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Outputs, Σ weight · |value|, and per head the largest Σ|q·k|·scale and range of scores, in fp64."""
        length, dim = len(self.query), self.head_dim
        query = self.query.astype(np.float64).reshape(length, self.kv_heads, -1, dim)
        key, value = (self.stored(rows).reshape(length, self.kv_heads, dim) for rows in (self.key, self.value))
        hidden = np.triu(np.ones((length, length), bool), 1)[:, None, None]
        scores = np.where(hidden, -np.inf, np.einsum("ihgd,jhd->ihgj", query, key) * self.scale)
        sizes = np.where(hidden, 0, np.einsum("ihgd,jhd->ihgj", np.abs(query), np.abs(key)) * abs(self.scale))
        largest = scores.max(axis=-1, keepdims=True)
        spread = (largest - np.where(hidden, np.inf, scores).min(axis=-1, keepdims=True)).clip(0)
        weights = np.exp(scores - largest)
        weights /= weights.sum(axis=-1, keepdims=True)
        output = np.einsum("ihgj,jhd->ihgd", weights, value).reshape(self.query.shape)
        magnitude = np.einsum("ihgj,jhd->ihgd", weights, np.abs(value)).reshape(self.query.shape)

        def per_feature(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.broadcast_to(values, query.shape).reshape(self.query.shape)

        return output, magnitude, per_feature(sizes.max(axis=-1, keepdims=True)), per_feature(spread)

    def check(self, found: NDArray[np.float32], exact_scores: bool = False) -> None:
        """Compare with fp64 softmax over fp16 keys and values.

        With u = 2⁻²⁴, L positions in C chunks, d features, all relative to A = Σ weight · |value|:

        * a score is a query times the scale and d fused operations: δ = (d + 1)·u·Σ|q·k|·scale off. Shifted scores
          change each softmax weight by at most 2δ, relatively;
        * each exponent is a rounded difference of scores: u·R off, R their range; so are, together, those of the
          chunks' corrections. Numerator and denominator both: 4·R·u;
        * an exponential is good to 2u (see SwiGLU). Numerator and denominator: 4u, and with each chunk's correction and
          its product 6·C·u;
        * the numerator is a sum of L terms, the denominator's lanes of L/16 and 2·C, folded in 4 steps; the quotient
          rounds once.

        Sum: 2δ + (4R + 17/16·L + 8C + 9)·u, and one more u for second orders. Weights below e⁻⁸⁷ come out as that.
        With ``exact_scores`` neither scores nor their differences are rounded: δ = R = 0.
        """
        output, magnitude, sizes, spread = self.exact()
        length = len(self.query)
        chunks = -(-length // 256)
        bound = (17 / 16 * length + 8 * chunks + 10) * UNIT
        if self.kv == "int8":
            bound = bound + 2.1 * self.query_rounding()
        if not exact_scores:
            bound = bound + 2 * (self.head_dim + 1) * UNIT * sizes + 4 * spread * UNIT
        bound = bound * magnitude + 1e-36 * np.abs(self.value).max()
        if self.kv == "int8":
            bound = bound + self.weight_rounding()
        assert (np.abs(found - output) <= bound).all()

    def query_rounding(self) -> NDArray[np.float64]:
        """How far scores may be off because queries times the scale are rounded to 32512 steps, per feature."""
        length, dim = len(self.query), self.head_dim
        query = np.abs(self.query).astype(np.float64).reshape(length, self.kv_heads, -1, dim)
        key = np.abs(self.stored(self.key)).reshape(length, self.kv_heads, 1, dim)
        largest = query.max(axis=-1, keepdims=True) * self.scale * key.sum(axis=-1, keepdims=True).max(axis=0)
        return np.broadcast_to(0.501 / 32512 * largest, query.shape).reshape(self.query.shape)

    def weight_rounding(self) -> NDArray[np.float64]:
        """How far outputs may be off because weights times the scales of values are rounded to 32512 steps of the
        largest in 256 positions: half a step for each code, in magnitude."""
        length, dim = len(self.query), self.head_dim
        query = self.query.astype(np.float64).reshape(length, self.kv_heads, -1, dim)
        key, value = (self.stored(rows).reshape(length, self.kv_heads, dim) for rows in (self.key, self.value))
        hidden = np.triu(np.ones((length, length), bool), 1)[:, None, None]
        scores = np.where(hidden, -np.inf, np.einsum("ihgd,jhd->ihgj", query, key) * self.scale)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        scales = np.abs(value).max(axis=-1).T[:, None] / 127
        total = np.zeros_like(query)
        for begin in range(0, length, 256):
            chunk = slice(begin, begin + 256)
            step = (weights[..., chunk] * scales[..., chunk]).max(axis=-1, keepdims=True) / 32512
            largest = np.where(scales[..., chunk] == 0, 1, scales[..., chunk])
            codes_sum = (np.abs(value[chunk]).transpose(1, 2, 0) / largest).sum(axis=-1)[:, None]
            total += 0.51 * step * codes_sum
        return total.reshape(self.query.shape)


def bfloats(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rounded to nearest, ties to even."""
    octets = rows.view(np.uint32).astype(np.uint64)
    rounded = (octets + 0x7FFF + (octets >> 16 & 1)) >> 16 << 16
    return rounded.astype(np.uint32).view(np.float32)


def codes(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rounded to 127 steps of each head's largest magnitude, in fp32 as the engine does."""
    heads = rows.reshape(len(rows), -1, head_dim)
    largest = np.abs(heads).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 1e-30)
    return (np.rint(heads * inverse) * (largest / np.float32(127))).reshape(rows.shape)


def halves(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float16]:
    return rows.astype(np.float16)


def exact(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    return rows


ROUNDINGS = {"fp32": exact, "fp16": halves, "bf16": bfloats, "int8": codes}


def random_case(group: int, kv_heads: int, head_dim: int, length: int, seed: int, kv: str = "fp16") -> Attended:
    random = np.random.default_rng(seed)
    query = random.normal(size=(length, kv_heads * group * head_dim)).astype(np.float32)
    key, value = random.normal(size=(2, length, kv_heads * head_dim)).astype(np.float32)
    return Attended(query, key, value, kv_heads, head_dim, float(np.float32(1.5 * head_dim**-0.5)), kv)


@st.composite
def cases(draw: st.DrawFn) -> Attended:
    return random_case(
        draw(st.sampled_from(GROUPS)),
        draw(st.integers(1, 2)),
        draw(st.sampled_from(HEAD_DIMS)),
        draw(st.sampled_from(LENGTHS)),
        draw(st.integers(0, 1000)),
        draw(st.sampled_from(list(ROUNDINGS))),
    )


@sweep(60)
@example(random_case(3, 3, 64, 100, 0))
@example(random_case(3, 1, 64, 300, 0, "int8"))
@example(random_case(7, 2, 6, 257, 0, "int8"))
@example(random_case(4, 1, 512, 65, 0, "int8"))
@example(random_case(7, 1, 96, 300, 0, "bf16"))
@example(random_case(7, 1, 90, 300, 0, "fp32"))
@example(random_case(1, 1, 2, 1, 0))
@example(random_case(8, 1, 256, 65, 0))
@example(random_case(50, 2, 80, 33, 0))
@given(cases())
def test_attention(case: Attended) -> None:
    """Accurate, and the same bits from every instruction set."""
    expected = case.run("portable")
    case.check(expected)
    for isa in ISAS:
        np.testing.assert_array_equal(bits(case.run(isa)), bits(expected), isa)


@sweep(60)
@given(cases(), st.data(), st.sampled_from(ISAS))
def test_prefill_in_pieces_equals_decode(case: Attended, data: st.DataObject, isa: str) -> None:
    """Bit for bit: whole, one by one, and cut anywhere, on any number of threads."""
    length = len(case.query)
    whole = bits(case.run(isa))
    np.testing.assert_array_equal(bits(case.run(isa, 1, [1] * length)), whole)
    cuts = sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=4))})
    pieces = np.diff(cuts).tolist()
    threads = data.draw(st.sampled_from([1, 2, 3, 7]))
    np.testing.assert_array_equal(bits(case.run(isa, threads, pieces)), whole, f"{pieces} on {threads} threads")


@each_isa
@pytest.mark.parametrize("largest", [1, 60, 2000])
def test_scores_may_be_large(isa: str, largest: int) -> None:
    """Scores of up to ±largest · 512 that fp32 holds exactly: nothing overflows, and only the softmax rounds."""
    random = np.random.default_rng(largest)
    head_dim, length = 64, 70
    query = random.integers(-largest, largest + 1, (length, 2 * head_dim)).astype(np.float32)
    key = random.integers(-8, 9, (length, head_dim)).astype(np.float32)
    value = random.normal(size=(length, head_dim)).astype(np.float32)
    case = Attended(query, key, value, 1, head_dim, 0.125)
    case.check(case.run(isa), exact_scores=True)


@each_isa
@pytest.mark.parametrize("size", [1e20, 5e37, -5e37])
def test_scores_near_the_ends_of_fp32(isa: str, size: float) -> None:
    """The largest score takes all the weight, wherever it lies and however low all of them are."""
    length = 40
    key = np.full((length, 2), 1.0, np.float32)
    key[17], key[36] = 2, 3
    value = np.arange(2 * length, dtype=np.float32).reshape(length, 2)
    case = Attended(np.full((length, 2), size, np.float32), key, value, 1, 2, 0.5)
    found = case.run(isa)
    if size > 0:
        np.testing.assert_array_equal(found[[17, 18, 35, 36, 39]], value[[17, 17, 17, 36, 36]])
    else:
        # All but two share the weight evenly.
        first = value[:17].mean(axis=0)
        np.testing.assert_allclose(found[[16, 17]], [first, first], rtol=1e-6)


@each_isa
@pytest.mark.parametrize("kv", ["fp32", "bf16", "int8"])
def test_what_is_beyond_fp16_can_be_kept(isa: str, kv: str) -> None:
    """Keys of ±1e6 and values of 1e9, zeros among them."""
    random = np.random.default_rng(0)
    query, key, value = (random.normal(size=(70, 32)).astype(np.float32) for _ in range(3))
    key[3], value[5] = 0, 0
    case = Attended(query * np.float32(1e-6), key * np.float32(1e6), value * np.float32(1e9), 1, 32, 0.2, kv)
    case.check(case.run(isa))


@each_isa
@pytest.mark.parametrize("kv", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("whose", ["key", "value"])
def test_no_token_sees_what_is_wrong_with_later_ones(isa: str, kv: str, what: float, whose: str) -> None:
    """Not even as one of several that are computed together, for whom a later one weighs 0: 0 · infinity is NaN."""
    random = np.random.default_rng(0)
    length, first_wrong = 80, 66
    query = random.normal(size=(length, 3 * 48)).astype(np.float32)
    key, value = (random.normal(size=(length, 48)).astype(np.float32) for _ in range(2))
    case = Attended(query, key, value, 1, 48, 0.2, kv)
    expected = case.run(isa)[:first_wrong]
    getattr(case, whose)[first_wrong:, 3] = what
    np.testing.assert_array_equal(bits(case.run(isa)[:first_wrong]), bits(expected))


@each_isa
def test_no_finite_score_is_nan(isa: str) -> None:
    """Not the mean of the values, which a softmax that only subtracts and divides makes of it."""
    length = 3
    query = np.full((length, 2), 3e38, np.float32)
    case = Attended(query, np.full((length, 2), -60000, np.float32), query / 1e38, 1, 2, 1.0)
    assert np.isnan(case.run(isa)).all()


@each_isa
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 2), (2, 6), (3, 64), (2, 80), (1, 256)])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("position", [0, 1, 5, 31, 32, 40])
def test_keys_and_values_lie_where_they_belong(
    isa: str, kv_heads: int, head_dim: int, normed: bool, position: int
) -> None:
    """Reads one appended key and value back through attention.

    All other keys and values are 0, and there is a query head for each feature of a key that picks just that one: with
    scale 1 its score is the feature k, its output v · eᵏ / (position + eᵏ).
    """
    random = np.random.default_rng(position)
    width, rows = kv_heads * head_dim, position + 1
    key, value = np.zeros((2, rows, width), np.float32)
    key[-1], value[-1] = random.normal(size=width), random.normal(1, 0.1, width)
    weight = random.normal(1, 0.2, head_dim).astype(np.float32)
    frequencies = 100.0 ** -(np.arange(head_dim // 2) * 2 / head_dim)
    picks = np.tile(np.eye(head_dim, dtype=np.float32), (kv_heads, 1)).reshape(1, -1).repeat(rows, axis=0)

    program = OpProgram(rows, isa, 1, 1, kv_heads, head_dim, frequencies.tolist())
    key_view, value_view = program.given(key, value)
    probe = program.guarded(picks)
    norm = weight if normed else None
    program.native.rotate_append("append", 0, key_view, key_view, value_view, program.new(width), None, norm, 1e-5)
    output = program.new(picks.shape[1])
    program.native.attention("attention", 0, probe, output, kv_heads * head_dim, 1.0)
    program.outputs(output, picks.shape[1])
    found = program.run()[-1].astype(np.float64).reshape(kv_heads, head_dim, head_dim)

    stored = value[-1].astype(np.float16).astype(np.float64).reshape(kv_heads, 1, head_dim)
    if position == 0:
        np.testing.assert_array_equal(found, np.broadcast_to(stored, found.shape))
        return
    share = found / stored
    np.testing.assert_allclose(share, share[:, :, :1].repeat(head_dim, axis=2), rtol=1e-5)
    read = np.log(share[:, :, 0] / (1 - share[:, :, 0])) + np.log(position)
    exact = key[-1:].astype(np.float64).reshape(-1, head_dim)
    if normed:
        exact = rms_norm(exact, weight.astype(np.float64), 1e-5)
    exact = rotate(exact.reshape(1, -1), np.array([position]), frequencies).reshape(kv_heads, head_dim)
    # Rounded to the nearest fp16, and read through a softmax whose weights are good to 1e-6 or so.
    spacing = np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)
    assert (np.abs(read - exact) <= spacing / 2 + 3e-5).all()
