"""Cases: every combination once, named as people know them, and nothing that is no number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nybble.bench.cases import Case, cross_product, parse_counts, parse_pairs
from nybble.errors import InvalidParameter
from tests.native.programs import sweep

NUMBERS = st.lists(st.integers(0, 5), max_size=3)


def test_names() -> None:
    assert [case.test for case in (Case(512, 0), Case(0, 128), Case(64, 32))] == ["pp512", "tg128", "pg64+32"]


def test_sizes() -> None:
    """Guards against rates that count one sequence of many, or contexts too short for what comes."""
    case = Case(3, 5, depth=7, batch=1)
    assert (case.tokens, case.context) == (8, 15)
    assert (Case(0, 5, depth=7, batch=4).tokens, Case(0, 5, depth=7, batch=4).context) == (20, 12)


def test_cross_product() -> None:
    cases = cross_product([8, 16], [4], [(2, 3)], [0, 9], [1, 2])
    assert cases == (
        Case(8, 0),
        Case(16, 0),
        Case(0, 4),
        Case(0, 4, 0, 2),
        Case(2, 3),
        Case(8, 0, 9),
        Case(16, 0, 9),
        Case(0, 4, 9),
        Case(0, 4, 9, 2),
        Case(2, 3, 9),
    )


@sweep(200)
@given(
    NUMBERS,
    NUMBERS,
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=2),
    NUMBERS,
    st.lists(st.integers(1, 5), max_size=3),
)
def test_any_cross_product(
    prompts: list[int], generated: list[int], pairs: list[tuple[int, int]], depths: list[int], batches: list[int]
) -> None:
    """Guards against combinations that are lost, come twice, or compute nothing."""
    wanted = {(prompt, 0, depth, 1) for prompt in prompts for depth in depths if prompt}
    wanted |= {(0, count, depth, batch) for count in generated for depth in depths for batch in batches if count}
    wanted |= {(*pair, depth, 1) for pair in pairs for depth in depths}
    if not wanted:
        with pytest.raises(InvalidParameter, match="nothing to measure"):
            cross_product(prompts, generated, pairs, depths, batches)
        return
    cases = cross_product(prompts, generated, pairs, depths, batches)
    assert len(cases) == len(wanted)
    assert {(case.prompt, case.generated, case.depth, case.batch) for case in cases} == wanted
    assert all(case.tokens > 0 for case in cases)


@sweep(100)
@given(st.lists(st.integers(0, 10**9 - 1), min_size=1, max_size=5))
def test_counts(numbers: list[int]) -> None:
    assert parse_counts(",".join(map(str, numbers)), "-p", 0, 10**9) == tuple(numbers)


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "-1", "+1", "1.5", "1e3", "0x10", "1_0", "٣", "²", "9" * 30, "a", "11"]
)
def test_no_counts(text: str) -> None:
    """Guards against Python's own idea of numbers, which takes underscores and other scripts."""
    with pytest.raises(InvalidParameter, match="--depth"):
        parse_counts(text, "--depth", 0, 10)


def test_pairs() -> None:
    assert parse_pairs(["512+128,3+4", "5+6"]) == ((512, 128), (3, 4), (5, 6))
    assert parse_pairs([]) == ()


@pytest.mark.parametrize("text", ["", "512", "512,128", "1+", "+1", "1+2+3", "0+1", "1+0", "a+b"])
def test_no_pairs(text: str) -> None:
    with pytest.raises(InvalidParameter, match="-pg"):
        parse_pairs([text])
