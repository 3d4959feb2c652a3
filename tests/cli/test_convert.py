"""``nybble convert``: what it says; what it writes is tested in tests/conversion."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.outcome import Nybble
from tests.engine.small_models import small_gguf


@pytest.mark.parametrize(
    ("storage", "options", "told"),
    [("Q8_0", (), ""), ("Q4_1", (), "float zero points"), ("Q4_1", ("--requantise",), "rounded to 8 bits")],
)
def test_convert(nybble: Nybble, tmp_path: Path, storage: str, options: tuple[str, ...], told: str) -> None:
    path = small_gguf(tmp_path / "model.gguf", storage=storage)
    outcome = nybble("convert", path, tmp_path / "made", *options)
    assert (outcome.code, outcome.output) == (0, "")
    assert told in outcome.remarks and str(tmp_path / "made") in outcome.remarks
    assert ("became fp32" in outcome.remarks) == (told == "float zero points")
    assert (tmp_path / "made" / "model.onnx").exists()
    again = nybble("convert", path, tmp_path / "made")
    assert again.code == 2 and "is there already" in again.error
