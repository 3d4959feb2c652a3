"""Guards against a conversion reported as harmless when it is not, or measured against the wrong thing."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import ModelFileError
from nybble.quant import blocks
from nybble.quant.blocks import dequantise
from nybble.quant.error import ConversionError, conversion_error
from nybble.quant.matrix import to_matrix
from nybble.quant.packing_rules import PACKED_AS
from nybble.quant.storage import StorageType

from .stored import FACTORS, random_tensor, set_factor

ROUNDED = [storage for storage, packed in PACKED_AS.items() if not packed.exact]


@pytest.mark.parametrize("storage", [storage for storage in StorageType if storage not in ROUNDED])
def test_exact_types_have_no_error(storage: StorageType) -> None:
    tensor = random_tensor(storage, (3, 64), 1, largest=None)
    assert conversion_error(tensor) == ConversionError(0.0, 0.0)


@pytest.mark.parametrize("storage", ROUNDED, ids=lambda storage: storage.name)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), largest=st.sampled_from([2.0**-14, 0.01, 1.0, 500.0]))
def test_the_error_is_that_of_the_whole_tensor(storage: StorageType, seed: int, largest: float) -> None:
    """Against the fp32 decoder, which itself rounds by 2⁻²³ of the terms it adds."""
    tensor = random_tensor(storage, (4, 512), seed, largest)
    stored = dequantise(tensor).astype(np.float64)
    matrix = to_matrix(tensor)
    difference = matrix.dequantise() - stored
    terms = float(np.abs(matrix.scales.astype(np.float64)).max()) * 256
    found = conversion_error(tensor)
    assert abs(found.maximum_absolute - np.abs(difference).max()) <= terms * 2.0**-22
    relative_rms = math.sqrt(np.square(difference).mean() / np.square(stored).mean())
    assert math.isclose(found.relative_rms, relative_rms, rel_tol=1e-2, abs_tol=1e-6)
    # Subnormal scales lose more than 2⁻¹¹ of themselves; these factors are mostly above.
    assert 0 < found.relative_rms < (2.0**-11 if largest >= 0.01 else 0.1)


@pytest.mark.parametrize("storage", ROUNDED, ids=lambda storage: storage.name)
def test_the_size_of_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch, storage: StorageType) -> None:
    tensor = random_tensor(storage, (7, 512), 2)
    whole = conversion_error(tensor)
    monkeypatch.setattr(blocks, "_CHUNK_ELEMENTS", 1)
    rows = conversion_error(tensor)
    assert rows.maximum_absolute == whole.maximum_absolute
    assert math.isclose(rows.relative_rms, whole.relative_rms, rel_tol=1e-12)


@pytest.mark.parametrize("storage", ROUNDED, ids=lambda storage: storage.name)
def test_a_tensor_of_zeros(storage: StorageType) -> None:
    assert conversion_error(random_tensor(storage, (2, 256), 3, largest=0.0)) == ConversionError(0.0, 0.0)


@pytest.mark.parametrize("storage", ROUNDED, ids=lambda storage: storage.name)
def test_what_cannot_be_packed_has_no_error_to_report(storage: StorageType) -> None:
    tensor = set_factor(random_tensor(storage, (2, 256), 4), 1, 0, FACTORS[storage][0], np.inf)
    with pytest.raises(ModelFileError, match="weight row"):
        conversion_error(tensor)


def test_memory_stays_small() -> None:
    tensor = random_tensor(StorageType.Q4_K, (4096, 1024), 5)
    tracemalloc.start()
    try:
        conversion_error(tensor)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
