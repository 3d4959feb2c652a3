"""GGUF models inspected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nybble.formats.gguf import open_gguf
from nybble.inspection.gguf import inspect_gguf
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor
from nybble.quant.unpack import FACTORS, UnpackedRows, unpack_rows
from tests.engine.small_models import small_gguf, spoilt_gguf


@pytest.mark.parametrize("storage", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_what_is_there(tmp_path: Path, storage: str) -> None:
    checkpoint = open_gguf(small_gguf(tmp_path / "small.gguf", storage=storage))
    found = inspect_gguf(checkpoint)
    assert found.findings == ()
    assert found.parameters == sum(tensor.elements for tensor in checkpoint.tensors.values())
    assert sum(kind.count for kind in found.linears) == sum(
        len(tensor.shape) == 2 and name != "token_embd.weight" for name, tensor in checkpoint.tensors.items()
    )
    assert all(kind.name.startswith("blk.*.") or kind.name == "output.weight" for kind in found.linears)
    assert found.tied is ("output.weight" not in checkpoint.tensors)
    assert found.architecture == found.metadata["general.architecture"] == "llama"


def test_a_weight_that_is_not_finite(tmp_path: Path) -> None:
    path = spoilt_gguf(tmp_path / "spoilt.gguf", "blk.1.ffn_down.weight", 3, float("nan"))
    (finding,) = inspect_gguf(open_gguf(path)).findings
    assert (finding.name, finding.where) == ("non-finite weights", "blk.1.ffn_down.weight")


@pytest.mark.parametrize("storage", [storage for storage in StorageType if not storage.is_float])
def test_where_factors_lie(storage: StorageType) -> None:
    """The factors named are those that make the block infinite: each of them, and no other byte pair is needed."""

    def unpacked(rows: np.ndarray) -> UnpackedRows:
        return unpack_rows(Tensor("x", storage, (1, storage.block_elements), rows, "file"), slice(None))

    row = np.full((1, storage.block_bytes), 0x11, np.uint8)
    for start in FACTORS[storage]:
        spoilt = row.copy()
        spoilt[0, start : start + 2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
        found = unpacked(spoilt)
        offsets = found.scales if found.offsets is None else found.offsets
        assert not (np.isfinite(found.scales).all() and np.isfinite(offsets).all())
    assert np.isfinite(unpacked(row).scales).all()
