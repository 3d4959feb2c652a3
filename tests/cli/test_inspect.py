"""``nybble inspect``: what it prints and how it exits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.outcome import Nybble
from tests.engine.small_models import spoilt_gguf


def test_a_model(nybble: Nybble, model: Path) -> None:
    outcome = nybble("inspect", model, "--strict")
    assert outcome.code == 0
    lines = outcome.output.splitlines()
    assert "GGUF, llama" in lines[0] and lines[-1] == "nothing odd"
    assert "blk.*.ffn_down.weight" in outcome.output
    facts = json.loads(nybble("inspect", model, "--json").output)
    assert facts["architecture"] == "llama" and facts["findings"] == []
    assert facts["parameters"] > 0 and facts["linears"]


def test_something_odd(nybble: Nybble, tmp_path: Path) -> None:
    path = spoilt_gguf(tmp_path / "spoilt.gguf", "blk.0.ffn_down.weight", 0, float("inf"))
    outcome = nybble("inspect", path)
    assert outcome.code == 0
    assert outcome.output.splitlines()[-1].startswith("non-finite weights: blk.0.ffn_down.weight: ")
    assert nybble("inspect", path, "--strict").code == 1
    assert nybble("inspect", path, "--strict", "--json").code == 1


def test_no_model(nybble: Nybble, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    outcome = nybble("inspect", text)
    assert outcome.code == 1 and "unknown content" in outcome.error
    assert nybble("inspect", tmp_path).code == 1
    assert nybble("inspect", tmp_path / "missing.gguf").code == 1


def test_strangers_cannot_steer_the_terminal(nybble: Nybble, tmp_path: Path) -> None:
    """Guards against names and metadata that are printed as they are."""
    library = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    library.save_file({"\x1b[31mweight": np.ones((2, 2), np.float32)}, path, metadata={"\x1b]0;": "\x1b[2J"})
    outcome = nybble("inspect", path)
    assert outcome.code == 0 and "\x1b" not in outcome.output and "\\x1b[2J" in outcome.output
