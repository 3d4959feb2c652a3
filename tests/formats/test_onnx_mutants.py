"""Guards against any damage at all: every truncation and every changed byte of a valid ONNX file.

The outcome is a typed error or a model whose every tensor can be read; never another exception, a hang, or memory out
of proportion.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.formats.onnx import open_onnx
from nybble.formats.onnx_model import OnnxModel

from . import mutants
from .mutants import traced  # noqa: F401 (a fixture)
from .toy_onnx import every_kind


def survives(path: Path, octets: bytes) -> bool:
    """Open the file and touch all of it; True when it opened, False when it was refused as it should be."""
    return mutants.survives(path, octets, open_onnx, touch)


def touch(model: OnnxModel) -> None:
    for tensor in model.initializers.values():
        assert 8 * tensor.octets.sum() >= 0
        assert len(tensor.octets) == -(-tensor.elements * tensor.data_type.bits // 8)


def test_truncated_anywhere(tmp_path: Path) -> None:
    octets = every_kind().SerializeToString()
    opened = [length for length in range(len(octets) + 1) if survives(tmp_path / "toy.onnx", octets[:length])]
    # Behind the graph come the opsets and the metadata, which may be missing from the end on.
    assert opened[-1] == len(octets)
    assert len(opened) < 6


def test_every_byte_changed(tmp_path: Path) -> None:
    octets = every_kind().SerializeToString()
    path = tmp_path / "toy.onnx"
    outcomes = [survives(path, mutant) for mutant in mutants.one_byte_changed(octets, len(octets))]
    assert 0.2 < sum(outcomes) / len(outcomes) < 0.9


@settings(max_examples=300)
@given(mutants.damaged(every_kind().SerializeToString()))
def test_several_changes_at_once(tmp_path_factory: pytest.TempPathFactory, mutant: bytes) -> None:
    survives(tmp_path_factory.getbasetemp() / "mutant.onnx", mutant)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_anything_at_all(tmp_path_factory: pytest.TempPathFactory, octets: bytes) -> None:
    survives(tmp_path_factory.getbasetemp() / "noise.onnx", octets)


@settings(max_examples=200)
@given(st.binary(max_size=120))
def test_any_graph_at_all(tmp_path_factory: pytest.TempPathFactory, octets: bytes) -> None:
    survives(tmp_path_factory.getbasetemp() / "noise.onnx", b"\x3a" + bytes([len(octets)]) + octets)
