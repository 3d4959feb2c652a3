"""Guards against any damage at all: every truncation and every changed byte of a valid file's header.

The outcome is a typed error or a file whose every tensor can be decoded; never another exception, a hang, or memory
out of proportion.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import ModelFileError, NybbleError
from nybble.formats.checkpoint import Checkpoint
from nybble.formats.gguf import open_gguf
from nybble.formats.open import open_checkpoint
from nybble.quant.blocks import dequantise

from . import mutants
from .mutants import traced  # noqa: F401 (a fixture)
from .toy_gguf import honest_toy


def survives(path: Path, octets: bytes) -> bool:
    """Open the file and use all of it; True when it opened, False when it was refused as it should be."""
    return mutants.survives(path, octets, open_checkpoint, decode)


def decode(checkpoint: Checkpoint) -> None:
    for tensor in checkpoint.tensors.values():
        with np.errstate(all="ignore"):
            assert dequantise(tensor).shape == tensor.shape
        checkpoint.release()


def test_truncated_anywhere(tmp_path: Path) -> None:
    octets = honest_toy().build()
    path = tmp_path / "toy.gguf"
    assert [length for length in range(len(octets) + 1) if survives(path, octets[:length])] == [len(octets)]


def test_truncated_data_says_how_much_is_missing(tmp_path: Path) -> None:
    octets = honest_toy().build()
    path = tmp_path / "toy.gguf"
    for missing in (1, 30, 68, 100):
        path.write_bytes(octets[:-missing])
        expected = f"cube: ends at byte {len(octets)} but the file has {len(octets) - missing} bytes"
        with pytest.raises(ModelFileError, match=expected):
            open_gguf(path)


def test_every_byte_of_the_header_changed(tmp_path: Path) -> None:
    toy = honest_toy()
    octets, header = toy.build(), len(toy.header())
    path = tmp_path / "toy.gguf"
    outcomes = [survives(path, mutant) for mutant in mutants.one_byte_changed(octets, header)]
    # Values and letters of names may change freely, lengths and kinds may not: both must be seen.
    assert 0.2 < sum(outcomes) / len(outcomes) < 0.8


@settings(max_examples=300)
@given(mutants.damaged(honest_toy().build()))
def test_several_changes_at_once(tmp_path_factory: pytest.TempPathFactory, mutant: bytes) -> None:
    survives(tmp_path_factory.getbasetemp() / "mutant.gguf", mutant)


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_anything_at_all(tmp_path_factory: pytest.TempPathFactory, octets: bytes, magic: bool) -> None:
    prefix = b"GGUF\x03\0\0\0" if magic else b""
    try:
        open_checkpoint_of(tmp_path_factory.getbasetemp() / "noise.gguf", prefix + octets)
    except NybbleError as error:
        assert "\n" not in str(error)


def open_checkpoint_of(path: Path, octets: bytes) -> None:
    path.write_bytes(octets)
    open_checkpoint(path)
