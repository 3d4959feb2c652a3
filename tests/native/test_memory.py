"""Guards against: weights in small pages, which one thread reads a third slower."""

from __future__ import annotations

from pathlib import Path

import pytest

from nybble import _native

SMAPS = Path("/proc/self/smaps")
MEBIBYTES = 24


def huge_kilobytes() -> int:
    """Kilobytes of all mappings for which huge pages are asked."""
    total = size = 0
    for line in SMAPS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Size":
            size = int(value.split()[0])
        elif name == "VmFlags" and "hg" in value.split():
            total += size
    return total


@pytest.mark.skipif(not SMAPS.exists(), reason="needs Linux")
@pytest.mark.skipif(SMAPS.exists() and "libasan" in SMAPS.read_text(), reason="AddressSanitizer watches a heap instead")
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages")
def test_huge_pages_are_asked_for_all_weights() -> None:
    before = huge_kilobytes()
    memory = _native.WeightMemory(MEBIBYTES << 20)
    assert huge_kilobytes() - before == MEBIBYTES << 10
    del memory
    assert huge_kilobytes() == before
