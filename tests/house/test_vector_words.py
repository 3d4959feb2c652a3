"""Guards against: a vector word that kernels use and some instruction set lacks, found only when that one is built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SIMD = Path(__file__).parents[2] / "native" / "kernels" / "simd"
WORD = re.compile(r"^(?:\[\[.*?\]\] )?(?:inline constexpr \w+ (\w+) =|inline [^(=]*?\b(\w+)\(|struct (\w+))", re.M)


def words(name: str) -> set[str]:
    return {next(filter(None, groups)) for groups in WORD.findall((SIMD / f"{name}.hpp").read_text())}


@pytest.mark.parametrize("name", sorted(path.stem for path in SIMD.glob("*.hpp")))
def test_every_instruction_set_spells_every_word(name: str) -> None:
    """A word of kernels/generic is in all files; one that three of them share is taken for such a word."""
    shared = words("avx2") & words("avx512_vnni") & words("portable")
    assert {"multiply_add", "prefetch", "BlockDot", "kTileRows"} <= shared
    assert shared <= words(name)
