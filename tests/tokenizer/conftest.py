"""The real model's metadata, where the model is at hand."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from nybble.errors import NybbleError
from nybble.formats.open import open_checkpoint
from nybble.hub.resolve import resolve
from nybble.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from nybble.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def real_metadata() -> Mapping[str, object]:
    """Metadata of the file NYBBLE_TEST_GGUF names, else of the default model if it is in the cache."""
    chosen = os.environ.get("NYBBLE_TEST_GGUF")
    try:
        path = Path(chosen) if chosen else resolve(None, offline=True)
    except NybbleError:
        pytest.skip("no model file: set NYBBLE_TEST_GGUF or fetch the default model")
    metadata = open_checkpoint(path).metadata
    if metadata.get("tokenizer.ggml.pre") != "smollm":
        pytest.skip("these tests know the answers for SmolLM2 only")
    return metadata


@pytest.fixture(scope="session")
def real_tokenizer(real_metadata: Mapping[str, object]) -> Tokenizer:
    return tokenizer_from_gguf(real_metadata, "model.gguf")
