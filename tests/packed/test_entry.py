"""Entries of the packed cache: what was written is read, and anything else is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nybble import _native
from nybble.packed.entry import BrokenEntry, read_description, read_entry, write_entry
from nybble.quant.storage import StorageType
from tests.quant.stored import random_tensor

ROWS, K = 640, 4096
WEIGHT_BYTES = _native.packed_bytes("Q8_0", ROWS, K)
DESCRIPTION = {"model": "toy", "calls": [["add", [1, 2.5, None, True]]]}
PARTS = [b"vectors", b"", bytes(range(256)) * 40]


def packed_memory() -> tuple[_native.WeightMemory, _native.PackedMatrix]:
    """More than one chunk of weights."""
    tensor = random_tensor(StorageType.Q8_0, (ROWS, K), 5)
    memory = _native.WeightMemory(WEIGHT_BYTES)
    matrix, _ = _native.pack(memory, 0, [("Q8_0", [tensor.rows])], K, _native.ThreadPool(2))
    return memory, matrix


def written(path: Path) -> _native.PackedMatrix:
    memory, matrix = packed_memory()
    with path.open("wb", buffering=0) as file:
        write_entry(file.fileno(), DESCRIPTION, PARTS, memory, WEIGHT_BYTES)
    return matrix


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("entries") / "whole.packed"
    written(path)
    assert len(path.read_bytes()) > (2 << 20)
    return path.read_bytes()


def read_whole(path: Path) -> None:
    read_entry(path, 2).finish()


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_written_is_read(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "entry.packed"
    matrix = written(path)
    entry = read_entry(path, threads)
    view = _native.packed_view(entry.memory, 0, "Q8_0", ROWS, K)
    entry.finish()
    path.unlink()
    np.testing.assert_array_equal(view.rows(0, ROWS), matrix.rows(0, ROWS))
    assert list(map(bytes, entry.parts)) == PARTS
    assert {name: entry.description[name] for name in DESCRIPTION} == DESCRIPTION


def test_any_damage_is_noticed(tmp_path: Path, whole: bytes) -> None:
    """One bit, wherever it is: in each of the first bytes, and at places spread over all of the rest."""
    path, padding = tmp_path / "entry.packed", whole.index(b"\0" * 64, 10240)
    start_of_weights = len(whole) - WEIGHT_BYTES
    places = [*range(200), *np.random.default_rng(1).integers(200, padding - 1, 60).tolist()]
    places += np.random.default_rng(2).integers(start_of_weights, len(whole), 60).tolist()
    places += [start_of_weights, len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(BrokenEntry):
            read_whole(path)


def test_any_cut_is_noticed(tmp_path: Path, whole: bytes) -> None:
    """Guards against reading past the end of a file, and against a tail that is not missed."""
    path = tmp_path / "entry.packed"
    for length in [*range(0, 300, 7), *range(4000, len(whole), 99_991), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(BrokenEntry):
            read_whole(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(BrokenEntry):
        read_whole(path)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**28 + 1, 2**28])
def test_lengths_are_not_believed(tmp_path: Path, whole: bytes, length: int) -> None:
    path = tmp_path / "entry.packed"
    path.write_bytes(whole[:16] + length.to_bytes(8, "little") + whole[24:])
    with pytest.raises(BrokenEntry):
        read_whole(path)


def test_a_file_cut_while_it_is_read(tmp_path: Path, whole: bytes) -> None:
    """Guards against a crash where a mapping would raise SIGBUS."""
    path = tmp_path / "entry.packed"
    path.write_bytes(whole)
    entry = read_entry(path, 0)  # nothing is read before it is waited for
    os.truncate(path, len(whole) - 1)
    with pytest.raises(BrokenEntry, match="checksums"):
        entry.finish()


def test_descriptions_are_read_alone(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "entry.packed"
    path.write_bytes(whole[:-WEIGHT_BYTES])
    assert read_description(path)["model"] == "toy"


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 31, 32, 33, 64, 100])
def test_checksums_tell_any_two_bits(length: int) -> None:
    """All changes of one or two bits give different checksums; so does a longer run of zeros."""
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8).tobytes()
    seen = {_native.checksum(data), *(_native.checksum(data + bytes(more)) for more in range(1, 40))}
    assert len(seen) == 40
    bits = range(8 * length)
    for first in bits:
        for second in [None, *bits[first + 1 :: 7]]:
            changed = bytearray(data)
            changed[first // 8] ^= 1 << first % 8
            if second is not None:
                changed[second // 8] ^= 1 << second % 8
            assert _native.checksum(bytes(changed)) not in seen
