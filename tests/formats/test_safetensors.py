"""The safetensors reader: equal to the format's own library on honest files, one line for the others."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nybble.errors import ModelFileError, NybbleError
from nybble.formats.safetensors import open_safetensors

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def written(folder: Path, header: Any, data: bytes = bytes(8)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_what_the_library_wrote(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    random_ = np.random.default_rng(3)
    arrays = {
        "a": random_.normal(size=(3, 5)).astype(np.float32),
        "b": random_.normal(size=(7,)).astype(np.float16),
        "scalar": np.array(5, np.int64),
        "none": np.zeros((0, 4), np.uint8),
    }
    path = tmp_path / "model.safetensors"
    library.save_file(arrays, path, metadata={"format": "np"})
    opened = open_safetensors(path)
    assert opened.metadata == {"format": "np"}
    assert opened.file_bytes == path.stat().st_size
    assert {name: tensor.shape for name, tensor in opened.tensors.items()} == {
        name: array.shape for name, array in arrays.items()
    }
    for name, array in arrays.items():
        assert opened.tensors[name].octets.tobytes() == array.tobytes()
        assert opened.tensors[name].elements == array.size


@pytest.mark.parametrize(
    ("header", "data", "named"),
    [
        (b"not json", b"", "no JSON"),
        (b"[" * 100000, b"", "no JSON"),
        (b'"text"', b"", "no JSON object"),
        (b'{"a": 1, "a": 2}', b"", "twice"),
        ({"a": 1}, b"", "expected dtype"),
        ({"a": {**ENTRY, "more": 1}}, bytes(8), "expected dtype"),
        ({"a": {**ENTRY, "dtype": "F4"}}, bytes(8), "F4"),
        ({"a": {**ENTRY, "dtype": ["F32"]}}, bytes(8), "dtype"),
        ({"a": {**ENTRY, "shape": [2.0]}}, bytes(8), "shape"),
        ({"a": {**ENTRY, "shape": [True, 2]}}, bytes(8), "shape"),
        ({"a": {**ENTRY, "shape": [-2]}}, bytes(8), "shape"),
        ({"a": {**ENTRY, "shape": [3]}}, bytes(8), "takes 8 bytes"),
        ({"a": {**ENTRY, "shape": [1 << 62, 1 << 62]}}, bytes(8), "takes 8 bytes"),
        ({"a": {**ENTRY, "data_offsets": [0]}}, bytes(8), "two whole numbers"),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8), "takes -8 bytes"),
        ({"a": ENTRY}, bytes(7), "download did not finish"),
        ({"a": ENTRY}, bytes(9), "of which the tensors are 8"),
        ({"a": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12), "begins at byte 4"),
        ({"a": ENTRY, "b": ENTRY}, bytes(8), "begins at byte 0"),
        ({"__metadata__": {"a": 1}}, b"", "texts"),
    ],
)
def test_attacks(tmp_path: Path, header: Any, data: bytes, named: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_safetensors(written(tmp_path, header, data))
    assert named in str(caught.value)


def test_a_header_longer_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for length in (9, 1 << 40, (1 << 64) - 1):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(ModelFileError):
            open_safetensors(path)


def test_mutants(tmp_path: Path) -> None:
    """Guards against damaged files ending in anything but one of our errors."""
    original = written(tmp_path, {"__metadata__": {"x": "y"}, "abc": ENTRY}).read_bytes()
    path, chance, refused = tmp_path / "mutant", random.Random(7), 0
    for _ in range(500):
        damaged = bytearray(original)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            open_safetensors(path)
        except NybbleError:
            refused += 1
    assert refused > 100
