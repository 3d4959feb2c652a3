"""Random models as GGUF files: read back by our reader and by ggml's own package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from nybble.bench import shape_file
from nybble.bench.job import RandomModel, WeightFormat
from nybble.bench.random_model import metadata, random_tensors
from nybble.bench.shape_file import gguf_storage, is_same_format, write_gguf
from nybble.bench.shapes import SHAPES
from nybble.formats.open import open_checkpoint
from nybble.models.build import build_graph
from nybble.quant.storage import StorageType
from nybble.tokenizer.gguf_tokenizer import tokenizer_from_gguf

SMALL = {
    name: replace(SHAPES[name], layers=2, vocabulary=300) for name in ("smollm2-135m", "tinyllama-1.1b", "qwen3-0.6b")
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("bits", "asymmetric"), [(4, False), (4, True), (8, False), (16, False)])
def test_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, bits: int, asymmetric: bool) -> None:
    """Guards against files that only some engine takes."""
    monkeypatch.setattr(shape_file, "shape_named", SMALL.__getitem__)
    model, path = RandomModel(name, WeightFormat(bits, 1 if bits == 16 else 32, asymmetric)), tmp_path / "random.gguf"
    write_gguf(model, path)
    made = random_tensors(SMALL[name], gguf_storage(model), "random")
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.tensors) == set(made)
    for index, (tensor, stored) in enumerate(made.items()):
        found = checkpoint.tensors[tensor]
        assert (found.shape, found.storage) == (stored.shape, stored.storage)
        np.testing.assert_array_equal(found.rows, np.roll(stored.rows, -(index % len(stored.rows)), axis=0))
    assert (
        metadata(SMALL[name]).items()
        <= {**checkpoint.metadata, f"{SMALL[name].architecture}.attention.layer_norm_rms_epsilon": 1e-5}.items()
    )
    build_graph(checkpoint)
    tokenizer_from_gguf(checkpoint.metadata, str(path))
    reader = gguf.GGUFReader(path)
    assert [tensor.name for tensor in reader.tensors] == list(made)
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == 300


def test_keys_and_values_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against engines that compute what is the same once only, and so look faster than they are."""
    monkeypatch.setattr(shape_file, "shape_named", SMALL.__getitem__)
    write_gguf(RandomModel("smollm2-135m", WeightFormat(4, 32)), tmp_path / "random.gguf")
    tensors = open_checkpoint(tmp_path / "random.gguf").tensors
    assert not np.array_equal(tensors["blk.0.attn_k.weight"].rows, tensors["blk.0.attn_v.weight"].rows)
    assert not np.array_equal(tensors["blk.0.ffn_gate.weight"].rows, tensors["blk.0.ffn_up.weight"].rows)


@pytest.mark.parametrize(
    ("bits", "block", "asymmetric", "storage", "same"),
    [
        (4, 32, False, StorageType.Q4_0, True),
        (4, 32, True, StorageType.Q4_1, True),
        (4, 128, False, StorageType.Q4_0, False),
        (8, 32, False, StorageType.Q8_0, True),
        (8, 32, True, StorageType.Q8_0, False),
        (8, 16, False, StorageType.Q8_0, False),
        (16, 1, False, StorageType.F16, True),
    ],
)
def test_nearest_format(bits: int, block: int, asymmetric: bool, storage: StorageType, same: bool) -> None:
    model = RandomModel("smollm2-135m", WeightFormat(bits, block, asymmetric))
    assert (gguf_storage(model), is_same_format(model)) == (storage, same)
