"""What a decoder in ONNX Runtime is fed with when a step is taken apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nybble.bench.onnxruntime_times import inputs_of_step
from nybble.bench.step_times import CONTEXT
from nybble.errors import BenchmarkFailed


def given(name: str, shape: list[Any], kind: str = "float") -> Any:
    return SimpleNamespace(name=name, shape=shape, type=f"tensor({kind})")


IDS, MASK, POSITIONS = (
    given(name, ["batch", "tokens"], "int64") for name in ("input_ids", "attention_mask", "position_ids")
)


@pytest.mark.parametrize("width", [16, "kv_cache_dim"])
@pytest.mark.parametrize(("rows", "before"), [(1, CONTEXT), (512, 0)])
def test_caches_of_any_length(width: int | str, rows: int, before: int) -> None:
    """The builder of ONNX Runtime GenAI leaves the features of a head open."""
    past = given("past_key_values.0.key", ["batch_size", 3, "past_sequence_length", width], "float16")
    feed = inputs_of_step([IDS, MASK, POSITIONS, past], rows, 16)
    assert feed["past_key_values.0.key"].shape == (1, 3, before, 16)
    assert feed["past_key_values.0.key"].dtype == np.float16
    assert feed["input_ids"].shape == (1, rows) and feed["attention_mask"].shape == (1, before + rows)
    np.testing.assert_array_equal(feed["position_ids"], np.arange(before, before + rows)[None])


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (given("past_key_values.0.key", ["b", 3, 64, 16]), "one cache of any length"),
        (given("past_key_values.0.key", ["b", 3, "past", "width"]), "one cache of any length"),
        (given("pixel_values", ["b", 3, 8, 8]), "which a plain decoder has not"),
    ],
)
def test_what_is_no_plain_decoder_is_refused(odd: Any, message: str) -> None:
    with pytest.raises(BenchmarkFailed, match=message):
        inputs_of_step([IDS, odd], 1, None)
