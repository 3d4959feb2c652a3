"""What a reader of hostile files owes whatever is done to a file: it opens and can be used, or is refused as it should
be; never another exception, a hang, or memory out of proportion."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

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
