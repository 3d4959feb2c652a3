"""What a reader of hostile files owes whatever is done to a file: it opens and can be used, or is refused as it should
be; never another exception, a hang, or memory out of proportion."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import strategies as st

from nybble.errors import ModelFileError, UnsupportedFeature

MEMORY = 8 << 20
Opened = TypeVar("Opened")


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    """Counts the memory that Python takes."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def survives(path: Path, octets: bytes, open_file: Callable[[Path], Opened], use: Callable[[Opened], None]) -> bool:
    """Open the file and use all of it; True when it opened, False when it was refused as it should be."""
    path.write_bytes(octets)
    tracemalloc.reset_peak()
    start = time.perf_counter()
    try:
        found = open_file(path)
    except (ModelFileError, UnsupportedFeature) as error:
        message = str(error)
        assert message.startswith(str(path))
        assert message.isprintable()
        opened = False
    else:
        use(found)
        opened = True
    assert time.perf_counter() - start < 1
    assert tracemalloc.get_traced_memory()[1] < MEMORY
    return opened


def one_byte_changed(octets: bytes, count: int) -> Iterator[bytes]:
    """``octets`` with one of the first ``count`` changed: to nothing, to everything, and by one."""
    for place in range(count):
        for value in {0x00, 0xFF, (octets[place] + 1) % 256} - {octets[place]}:
            yield octets[:place] + bytes([value]) + octets[place + 1 :]


@st.composite
def damaged(draw: st.DrawFn, octets: bytes) -> bytes:
    """``octets`` with a few of them changed, and perhaps cut off somewhere."""
    mutant = bytearray(octets)
    changes = draw(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
    for place, value in changes:
        mutant[place % len(mutant)] = value
    cut, keep = draw(st.integers(0, 10**6)), draw(st.booleans())
    return bytes(mutant if keep else mutant[: cut % len(mutant)])
