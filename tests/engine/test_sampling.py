"""The sampler against a slow reference that sorts the whole vocabulary in fp64 and keeps every step apart."""

import math
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nybble.engine.sampler import Sampler, _drawn
from nybble.engine.sampling import SamplingOptions, default_origins, defaults_from_metadata
from nybble.errors import InvalidParameter, NumericalError

# Distance from a filter's edge, relative to the total, below which rounding may decide either way.
EDGE = 1e-9


def reference(logits, history, options):
    """{id: probability} after all filters, or None where a threshold falls too close to call."""
    scores = [float(value) for value in logits]
    if options.repetition_penalty != 1.0:
        for token in set(history):
            value = scores[token]
            penalised = value / options.repetition_penalty if value > 0 else value * options.repetition_penalty
            scores[token] = float(np.float32(penalised))
    if options.temperature == 0.0:
        return {scores.index(max(scores)): 1.0}
    highest = max(scores)
    ranked = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if options.top_k > 0:
        ranked = ranked[: options.top_k]
    weights = {token: math.exp((scores[token] - highest) / options.temperature) for token in ranked}
    total = math.fsum(weights.values())
    if options.top_p < 1.0:
        kept, mass = [], 0.0
        for token in ranked:
            kept.append(token)
            mass += weights[token]
            if abs(mass / total - options.top_p) < EDGE:
                return None
            if mass >= options.top_p * total:
                break
        ranked = kept
    if options.min_p > 0.0:
        if any(abs(weights[token] - options.min_p) < EDGE and weights[token] != 1.0 for token in ranked):
            return None
        ranked = [token for token in ranked if weights[token] >= options.min_p]
    total = math.fsum(weights[token] for token in ranked)
    return {token: weights[token] / total for token in sorted(ranked)}


def agree(logits, history, options, expected):
    identifiers, probabilities = Sampler(options).distribution(logits, history)
    assert identifiers.tolist() == list(expected)
    np.testing.assert_allclose(probabilities, list(expected.values()), rtol=1e-9, atol=1e-300)


all_options = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 1e-300, 1e-3, 0.3, 0.8, 1.0, 1.7, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 10**6]),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([0.01, 0.5, 1.0, 1.1, 100.0]),
)


@settings(max_examples=150)
@given(options=all_options, seed=st.integers(0, 2**32), size=st.sampled_from([1, 2, 5, 63, 65, 300, 1500]))
def test_filters_keep_the_same_tokens_with_the_same_probabilities(options, seed, size):
    """Guards order and definition of each filter, on smooth random logits, short vocabularies to long."""
    generator = np.random.default_rng(seed)
    logits = (generator.normal(size=size) * generator.choice([0.01, 1, 8])).astype(np.float32)
    history = generator.integers(0, size, size=generator.integers(0, 20)).tolist()
    expected = reference(logits, history, options)
    assume(expected is not None)
    agree(logits, history, options, expected)


@settings(max_examples=150)
@given(options=all_options, seed=st.integers(0, 2**32), size=st.sampled_from([3, 64, 130, 1500]))
def test_ties_go_to_the_lowest_id(options, seed, size):
    """Guards against an unstable partition: many equal logits, so each cut goes through a group of equals."""
    logits = np.random.default_rng(seed).integers(-2, 3, size=size).astype(np.float32)
    expected = reference(logits, [0, size - 1, 0], options)
    assume(expected is not None)
    agree(logits, [0, size - 1, 0], options, expected)


@pytest.mark.parametrize("size", [512, 513, 20_000])
@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.9999])
def test_nucleus_of_a_flat_vocabulary(size, top_p):
    """Guards the growing search of the nucleus: a nearly flat distribution needs more than the first round."""
    logits = (np.random.default_rng(size).normal(size=size) * 0.1).astype(np.float32)
    options = SamplingOptions(temperature=1.0, top_p=top_p)
    agree(logits, [], options, reference(logits, [], options))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 17, 99])
def test_logits_that_are_not_finite_are_refused(temperature, value, position):
    """Guards against sampling garbage from a broken kernel: NaN compares false with everything."""
    logits = np.linspace(-3, 3, 100, dtype=np.float32)
    logits[position] = value
    with pytest.raises(NumericalError, match=rf"1 of 100 logits .* {value} at token id {position}"):
        Sampler(SamplingOptions(temperature=temperature)).sample(logits, [])


def test_extreme_but_finite_logits():
    """Guards against overflow inside: the largest float32 of both signs, with a penalty that pushes outward."""
    logits = np.array([3.4e38, -3.4e38, 3.4e38, 0.0], dtype=np.float32)
    for options in (
        SamplingOptions(),
        SamplingOptions(temperature=1e-300, seed=1),
        SamplingOptions(temperature=1.0, top_p=0.9, min_p=0.1, seed=1),
        SamplingOptions(temperature=100.0, repetition_penalty=100.0, seed=1),
        SamplingOptions(temperature=100.0, repetition_penalty=0.01, seed=1),
    ):
        assert Sampler(options).sample(logits, [1, 0]) in (0, 2)


def test_repetition_penalty_counts_a_token_once_and_changes_no_input():
    """Guards against a penalty that grows with the count, and against writing into the engine's buffer."""
    logits = np.array([2.0, 1.9, -1.0], dtype=np.float32)
    before = logits.copy()
    sampler = Sampler(SamplingOptions(repetition_penalty=1.01))
    assert sampler.sample(logits, [0] * 50) == 0  # 2 / 1.01 > 1.9, but 2 / 1.01 ** 50 is not
    assert sampler.sample(logits, np.array([0] * 50)) == 0
    assert Sampler(SamplingOptions(repetition_penalty=1.1)).sample(logits, [0]) == 1
    assert np.array_equal(logits, before)
    with pytest.raises(InvalidParameter, match="token id 3; ids must be from 0 to 2"):
        sampler.sample(logits, [0, 3])


def draws(options, logits, count):
    sampler = Sampler(options)
    return [sampler.sample(logits, []) for _ in range(count)]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**64 - 2, -(2**63)])
def test_a_seed_reproduces_and_seeds_differ(seed):
    """Guards reproducibility: equal seeds equal streams, whatever other samplers do in between."""
    logits = np.random.default_rng(5).normal(size=1000).astype(np.float32)
    options = SamplingOptions(temperature=1.0, seed=seed)
    first = draws(options, logits, 40)
    draws(SamplingOptions(temperature=1.0), logits, 3)
    assert draws(options, logits, 40) == first
    assert draws(SamplingOptions(temperature=1.0, seed=7), logits, 40) != first
    unseeded = SamplingOptions(temperature=1.0)
    assert draws(unseeded, logits, 40) != draws(unseeded, logits, 40)


def test_the_stream_of_a_seed_never_changes():
    """Guards against a numpy or code change that silently alters what a published seed produces."""
    logits = np.zeros(1000, dtype=np.float32)
    expected = []
    generator = np.random.PCG64(42)
    for _ in range(6):
        expected.append((int(generator.random_raw()) >> 11) * 1000 // 2**53)
    assert expected == [773, 438, 858, 697, 94, 975]
    assert draws(SamplingOptions(temperature=1.0, seed=42), logits, 6) == expected


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(temperature=1.0, seed=3),
        SamplingOptions(temperature=0.7, top_k=5, seed=3),
        SamplingOptions(temperature=1.3, top_p=0.8, min_p=0.02, seed=3),
    ],
)
@pytest.mark.parametrize("size", [8, 1300])
def test_draws_follow_the_distribution(options, size):
    """Guards the draw itself (chi-squared, fixed seed): a slip by one entry or one block would shift every count."""
    logits = (np.random.default_rng(size).normal(size=size) * 2).astype(np.float32)
    identifiers, probabilities = Sampler(options).distribution(logits, [])
    count = 4000
    counts = np.bincount(draws(options, logits, count), minlength=size)
    assert counts.sum() == counts[identifiers].sum() == count
    # Bins with few expected draws are put together, as the chi-squared test requires.
    common = probabilities * count >= 10
    observed = np.append(counts[identifiers][common], counts[identifiers][~common].sum())
    expected = np.append(probabilities[common], probabilities[~common].sum()) * count
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom) + 5


@settings(max_examples=100)
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-320, 1e-17, 0.1, 1.0]), min_size=1, max_size=8),
    repeats=st.sampled_from([1, 100, 300]),
    uniform=st.sampled_from([0.0, 2.0**-53, 0.25, 0.5, 1 - 2.0**-53]),
)
def test_no_draw_ever_hits_an_impossible_token(weights, repeats, uniform):
    """Guards the ends of the running sums: uniform 0 and the largest fraction must not land on zero weights."""
    table = np.repeat(np.array(weights), repeats)
    assume(table.sum() > 0)
    assert table[_drawn(table, uniform)] > 0


def test_exact_edges():
    """Guards the cases the property tests leave to rounding: a threshold or a draw that falls exactly on an edge."""
    flat = np.zeros(4, dtype=np.float32)
    assert Sampler(SamplingOptions(temperature=1.0, top_p=0.5)).distribution(flat, [])[0].tolist() == [0, 1]
    assert Sampler(SamplingOptions(temperature=1.0, min_p=1.0)).distribution(flat, [])[0].tolist() == [0, 1, 2, 3]
    ones = np.ones(2048)
    assert [_drawn(ones, part / 2048) for part in (0, 1, 511, 512, 513, 2047)] == [0, 1, 511, 512, 513, 2047]
    assert _drawn(np.append(np.zeros(600), np.ones(1)), 0.0) == 600


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, -1e-9, 1e300, "0.5", None, True, [1.0], 1j])
def test_absurd_numbers_are_refused_by_name(name, value):
    """Guards W3 of the attack list: every absurd float a request can carry is an error before it reaches a formula."""
    with pytest.raises(InvalidParameter, match=rf"^{name} is .* (from|to) "):
        SamplingOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("top_k", "seed") for value in (2**64, -(2**63) - 1, 1.5, "1", True)]
    + [("top_k", -1), ("top_k", 2**31), ("top_k", None), ("repetition_penalty", 0)],
)
def test_absurd_integers_are_refused_by_name(name, value):
    """Guards against truncation and wrap-around of integers, and a penalty of zero (a division by zero)."""
    with pytest.raises(InvalidParameter, match=rf"^{name} is "):
        SamplingOptions(**{name: value})


def test_legal_edges_and_numpy_numbers_are_accepted():
    """Guards against refusing what is legal: inclusive ends, integers for floats, numpy scalars."""
    options = SamplingOptions(temperature=np.float32(1), top_k=np.int64(5), top_p=0, min_p=1, repetition_penalty=2)
    assert options == SamplingOptions(1.0, 5, 0.0, 1.0, 2.0)
    assert [type(value) for value in (options.temperature, options.top_k, options.top_p)] == [float, int, float]


def test_defaults_come_from_the_model_file():
    """Guards key names (against the gguf package), fp32 noise, -1 for off, and the report of every origin."""
    keys = pytest.importorskip("gguf").Keys.General
    metadata = {
        keys.SAMPLING_TEMP: float(np.float32(0.6)),
        keys.SAMPLING_TOP_P: float(np.float32(0.95)),
        keys.SAMPLING_TOP_K: -1,
        keys.SAMPLING_PENALTY_REPEAT: 1.0,
        keys.SAMPLING_MIROSTAT: 2,
        "general.architecture": "llama",
    }
    assert defaults_from_metadata(metadata) == SamplingOptions(temperature=0.6, top_p=0.95)
    assert default_origins(metadata) == {
        "temperature": "general.sampling.temp",
        "top_k": "general.sampling.top_k",
        "top_p": "general.sampling.top_p",
        "min_p": "nybble's default",
        "repetition_penalty": "general.sampling.penalty_repeat",
        "general.sampling.mirostat": "ignored",
    }
    assert defaults_from_metadata({keys.SAMPLING_MIN_P: 0.5, keys.SAMPLING_TOP_K: 20}).top_k == 20
    assert defaults_from_metadata({}) == SamplingOptions()


@pytest.mark.parametrize("value", [7.0, math.nan, "0.9", [0.9], True])
def test_an_absurd_default_in_a_file_is_not_used_and_named(value, caplog):
    """Guards against a hostile model file choosing nonsense silently, or making the model impossible to load."""
    metadata = {"general.sampling.top_p": value, "general.sampling.temp": 0.5}
    assert defaults_from_metadata(metadata) == SamplingOptions(temperature=0.5)
    assert "general.sampling.top_p of the model file is not used: top_p is " in caplog.text
    assert "general.sampling.top_p of the model file is no use: top_p is " in default_origins(metadata)["top_p"]


def test_a_large_vocabulary_is_not_sorted():
    """Guards against a per-token cost that grows into the decode time; the limit is generous for slow machines."""
    logits = (np.random.default_rng(1).normal(size=150_000) * 3).astype(np.float32)
    samplers = [Sampler(SamplingOptions()), Sampler(SamplingOptions(temperature=0.8, top_k=40, top_p=0.95, seed=1))]
    start = time.perf_counter()
    for sampler in samplers:
        for _ in range(20):
            sampler.sample(logits, [])
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("shape", [(0,), (2, 3), ()])
def test_wrong_shapes_are_refused(shape):
    """Guards against a batch of logits flattened by accident."""
    with pytest.raises(InvalidParameter, match=r"expected \(vocabulary,\)"):
        Sampler(SamplingOptions()).sample(np.zeros(shape, dtype=np.float32), [])
