"""Rows: medians, ceilings and shares from what processes measured."""

from __future__ import annotations

import pytest

from nybble.bench.cases import Case
from nybble.bench.row import build_row
from tests.bench.made_up import CEILINGS, FACTS, ORIGIN, measured, row


def test_rates_and_busy_samples() -> None:
    """Guards against medians of medians, and against disturbed samples that count."""
    processes = [measured([1, 2, 4], [False, False, True]), measured([5, 10], [False, True])]
    made = build_row("nybble", "tiny", "int8", 2, Case(0, 20), processes, FACTS, ORIGIN)
    assert made.samples == (20, 10, 5, 4, 2)
    assert made.busy == (False, False, True, False, True)
    assert (made.tokens_per_second, made.minimum, made.maximum) == (10, 4, 20)
    assert made.process_medians == (15, 4)
    assert (made.processes, made.busy_samples) == (2, 2)


def test_generation_against_memory() -> None:
    """100 bytes a token at 1000 bytes a second are 10 tokens a second at best."""
    made = row(Case(0, 9), [4.0])
    assert made.bound == "memory"
    assert made.ceiling_tokens_per_second == pytest.approx(10)
    assert made.share == pytest.approx(0.4)
    assert made.bytes_per_token == pytest.approx(100)
    assert made.gigabytes_per_second == pytest.approx(100 * 4 / 1e9)
    assert made.kv_bytes_per_token == pytest.approx(2 * 5)
    assert made.share_with_kv == pytest.approx(0.4 * 1.1)
    assert made.read_bandwidth == pytest.approx(1e-6)


def test_prompts_against_arithmetic() -> None:
    """100 products a token at 5000 a second are 50 tokens a second at best."""
    made = row(Case(400, 0), [20.0])
    assert made.bound == "arithmetic"
    assert made.ceiling_tokens_per_second == pytest.approx(50, rel=0.01)
    assert made.share == pytest.approx(0.4, rel=0.01)
    assert made.gigaoperations_per_second == pytest.approx(2 * 100 * 20 / 1e9, rel=0.01)
    assert made.int8_peak == pytest.approx(2 * 5000 / 1e9)


def test_each_process_has_its_own_ceiling() -> None:
    """Guards against a share above 1 because another process had slower memory."""
    fast, slow = CEILINGS, {**CEILINGS, "read_bandwidth": 100.0}
    processes = [measured([10 / 8], ceilings=[fast]), measured([10 / 0.8], ceilings=[slow])]
    made = build_row("nybble", "tiny", "int8", 2, Case(0, 10), processes, FACTS, ORIGIN)
    assert made.share == pytest.approx(0.8)


def test_peaks_are_those_of_the_machine() -> None:
    """Guards against a peak that a neighbour halved in one process."""
    disturbed = {**CEILINGS, "int8_peak": 2500.0}
    processes = [measured([400 / 20], ceilings=[found]) for found in (disturbed, CEILINGS, disturbed)]
    made = build_row("nybble", "tiny", "int8", 2, Case(400, 0), processes, FACTS, ORIGIN)
    assert made.share == pytest.approx(0.4, rel=0.01)
    assert made.int8_peak == pytest.approx(1e-5)


def test_ceilings_before_and_after() -> None:
    """Neighbours can only have lowered what was measured."""
    before = {"read_bandwidth": 900.0, "int8_peak": 5000.0, "fp32_peak": 1.0}
    after = {"read_bandwidth": 1100.0, "int8_peak": 4000.0, "fp32_peak": 2.0}
    made = build_row("nybble", "tiny", "int8", 2, Case(0, 10), [measured([1], ceilings=[before, after])], FACTS, ORIGIN)
    assert made.read_bandwidth == pytest.approx(1.1e-6)
    assert made.int8_peak == pytest.approx(1e-5)


def test_other_engines_have_no_ceiling() -> None:
    made = row(engine="llama-cpp")
    assert made.share is made.ceiling_tokens_per_second is made.bytes_per_token is made.bound is None
    assert made.version == "9"


def test_provenance() -> None:
    made = row()
    assert (made.cpu, made.isa, made.version, made.revision) == ("a processor", "portable", "1.2.3", "abcdef")
    assert (made.model, made.model_type, made.bits_per_weight) == ("tiny", "llama Q4_0", 4.5)
