"""The real model's vocabulary."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from nybble.formats.open import open_checkpoint
from nybble.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from nybble.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def real_metadata(smollm2_path: Path) -> Mapping[str, object]:
    return open_checkpoint(smollm2_path).metadata


@pytest.fixture(scope="session")
def real_tokenizer(real_metadata: Mapping[str, object]) -> Tokenizer:
    return tokenizer_from_gguf(real_metadata, "model.gguf")
