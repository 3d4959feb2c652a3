"""safetensors models inspected."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nybble.errors import ModelFileError
from nybble.formats.safetensors import open_safetensors
from nybble.inspection.inspect import inspect
from nybble.inspection.inspection import Inspection
from nybble.inspection.safetensors import inspect_safetensors

library = pytest.importorskip("safetensors.numpy")


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    return {
        "model.embed_tokens.weight": random.normal(size=(96, 64)).astype(np.float16),
        **{
            f"model.layers.{layer}.mlp.up_proj.weight": random.normal(size=(128, 64)).astype(np.float16)
            for layer in range(3)
        },
        "model.norm.weight": np.ones(64, np.float16),
        "model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float16),
    }


def inspected(folder: Path, tensors: dict[str, np.ndarray], **config: object) -> Inspection:
    path = folder / "model.safetensors"
    library.save_file(tensors, path)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return inspect_safetensors(path, [open_safetensors(path)])


def test_what_is_there(tmp_path: Path) -> None:
    found = inspected(tmp_path, weights())
    assert found.findings == ()
    (up,) = found.linears
    assert (up.name, up.count, up.outputs, up.features, up.storage, up.bits) == (
        "model.layers.*.mlp.up_proj.weight",
        3,
        128,
        64,
        "F16",
        16,
    )
    assert (found.architecture, found.tied, found.bits_per_weight) == ("llama", True, 16)
    assert found.embedding == "F16, 96 x 64"


def test_findings(tmp_path: Path) -> None:
    tensors = weights()
    tensors["model.layers.0.mlp.up_proj.weight"][5, 5] = np.inf
    tensors["model.layers.1.mlp.up_proj.weight"][:] = 0
    tensors["model.norm.weight"][7] = 40
    found = inspected(tmp_path, tensors, tie_word_embeddings=False)
    assert sorted(finding.name for finding in found.findings) == [
        "all zero",
        "missing head",
        "non-finite weights",
        "outlier channel",
    ]


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    library.save_file(weights(), path)
    with pytest.raises(ModelFileError, match="another file"):
        inspect_safetensors(path, [open_safetensors(path), open_safetensors(path)])


@pytest.mark.parametrize("config", ["{", "[]", "[" * 100_000])
def test_a_broken_configuration(tmp_path: Path, config: str) -> None:
    path = tmp_path / "model.safetensors"
    library.save_file(weights(), path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        inspect_safetensors(path, [open_safetensors(path)])


def test_shards(tmp_path: Path) -> None:
    tensors = weights()
    names = sorted(tensors)
    files = {"a.safetensors": names[:2], "b.safetensors": names[2:]}
    for file, own in files.items():
        library.save_file({name: tensors[name] for name in own}, tmp_path / file)
    places = {name: file for file, own in files.items() for name in own}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert inspect(tmp_path).parameters == sum(array.size for array in tensors.values())
    for bad in ({}, {"x": "../elsewhere.safetensors"}, {"x": 1}):
        index.write_text(json.dumps({"weight_map": bad}))
        with pytest.raises(ModelFileError, match="weight_map"):
            inspect(tmp_path)
