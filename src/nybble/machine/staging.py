"""Tightly coupled memory (TCM) beside the A100 cores, through which single rows may take their weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

LIBRARY = "libspine_tcm.so"
"""The vendor's, which hands blocks out."""

VARIABLE = "NYBBLE_TCM"
"""``off``, or another library than :data:`LIBRARY`."""

FIRST_CORE = 8
"""The core that block 0 is beside; neighbouring blocks are those of a pair."""


class Pool(Protocol):
    """:class:`_native.ThreadPool`, or one that is made up."""

    @property
    def staging_bytes(self) -> int:
        """Bytes of each thread's block."""
        ...

    def stage(self, library: str, blocks: Sequence[int], /) -> str:
        """Why not, or nothing."""
        ...


def stage(pool: Pool, cpus: Sequence[int]) -> str:
    """Give each thread of ``pool``, which are on ``cpus``, the block beside its core; says what came of it."""
    library = os.environ.get(VARIABLE, "") or LIBRARY
    if library == "off":
        return f"not used: {VARIABLE}=off"
    problem = pool.stage(library, [cpu - FIRST_CORE for cpu in cpus])
    return f"not used: {problem}" if problem else f"{len(cpus)} blocks of {pool.staging_bytes >> 10} KiB"
