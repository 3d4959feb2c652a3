"""Tiny models that answer in letters and never end on their own, so that tests decide when they stop."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from tests.models.tiny import TinyModel, byte_tokens, gguf_weights, random_weights, write_gguf

LETTERS = [byte_tokens().index(letter) for letter in string.ascii_lowercase]


def talker(path: Path, **configuration: Any) -> Path:
    """Write a model to ``path`` whose likeliest token is always a letter: all other rows of its head are zero."""
    model = TinyModel(**configuration)
    tensors = gguf_weights(model, random_weights(model))
    letters = tensors["output.weight"][LETTERS].copy()
    tensors["output.weight"][:] = 0
    tensors["output.weight"][LETTERS] = letters
    return write_gguf(path, model, tensors)
