"""Merging byte pairs against the definition: while any neighbours have a rank, all of the lowest are joined."""

from __future__ import annotations

import struct
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble import _native

NONE = 2**32 - 1
LETTERS = b"abcd"
FIRST = len(LETTERS)


def byte_pairs(merges: list[tuple[int, int, int]], letters: bytes = LETTERS) -> _native.BytePairs:
    tokens = [letters.index(byte) if byte in letters else NONE for byte in range(256)]
    return _native.BytePairs(struct.pack("<256I", *tokens), b"".join(struct.pack("<3I", *merge) for merge in merges))


def by_definition(word: bytes, merges: list[tuple[int, int, int]]) -> list[int]:
    ranks = {(left, right): (rank, merged) for rank, (left, right, merged) in enumerate(merges)}
    tokens = [LETTERS.index(byte) for byte in word if byte in LETTERS]
    while found := [ranks[pair] for pair in pairwise(tokens) if pair in ranks]:
        rank, merged = min(found)
        joined, place = [], 0
        while place < len(tokens):
            pair = tuple(tokens[place : place + 2])
            if ranks.get(pair, (None,))[0] == rank:  # type: ignore[arg-type]
                joined.append(merged)
                place += 2
            else:
                joined.append(tokens[place])
                place += 1
        tokens = joined
    return tokens


@st.composite
def vocabularies(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Each merge joins tokens there are by then; pairs and results may repeat."""
    merges: list[tuple[int, int, int]] = []
    for number in range(draw(st.integers(0, 12))):
        known = st.integers(0, FIRST + number - 1)
        merges.append((draw(known), draw(known), FIRST + number))
    return merges


@settings(deadline=None)
@given(vocabularies(), st.lists(st.text("abcde", max_size=30), max_size=4))
def test_by_definition(merges: list[tuple[int, int, int]], words: list[str]) -> None:
    octets = [word.encode() for word in words]
    expected = [token for word in octets for token in by_definition(word, merges)]
    assert byte_pairs(merges).encode(octets) == expected


def test_bytes_without_a_token_are_left_out() -> None:
    """And no merge reaches across a word's end."""
    pairs = byte_pairs([(0, 1, 4)])
    assert pairs.encode([b"a", b"b", b"a\xffb", b"", b"zz"]) == [0, 1, 4]


def test_long_words_take_no_quadratic_time() -> None:
    """Guards against a prompt without a space that keeps the engine busy for minutes."""
    merges = [(0, 0, 4), *((token, token, token + 1) for token in range(4, 20))]
    start = time.process_time()
    tokens = byte_pairs(merges).encode([b"a" * 1_000_000])
    assert time.process_time() - start < 10
    assert sum(2 ** (token - 3) if token > 3 else 1 for token in tokens) == 1_000_000


@pytest.mark.parametrize(("tokens", "merges"), [(1023, 0), (1025, 0), (0, 0), (1024, 11), (1024, 1)])
def test_wrong_sizes_are_refused(tokens: int, merges: int) -> None:
    with pytest.raises(ValueError):
        _native.BytePairs(bytes(tokens), bytes(merges))
