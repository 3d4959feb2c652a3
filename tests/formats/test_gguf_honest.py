"""Guards against: values, shapes or bytes of a good file read wrongly; versions, offsets and padding mistaken."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nybble.errors import ModelFileError
from nybble.formats.gguf import open_gguf
from nybble.formats.gguf_tensors import READABLE, UNREADABLE
from nybble.quant.blocks import dequantise
from nybble.quant.storage import StorageType

from .toy_gguf import ARCHITECTURE, STRING, U32, ToyGGUF, array_key, honest_toy, key, scalar, tensor_entry


def test_every_kind_of_value_and_tensor_of_a_file_made_by_hand(tmp_path: Path) -> None:
    toy = honest_toy()
    checkpoint = open_gguf(toy.write(tmp_path / "toy.gguf"))
    assert checkpoint.architecture == "toy"
    assert checkpoint.file_bytes == len(toy.build())
    assert dict(checkpoint.metadata) == {
        "general.architecture": "toy",
        "general.alignment": 32,
        "toy.u8": 200,
        "toy.i8": -100,
        "toy.u16": 60000,
        "toy.i16": -30000,
        "toy.i32": -(2**30),
        "toy.f32": 0.5,
        "toy.boolean": True,
        "toy.u64": 2**63,
        "toy.i64": -(2**62),
        "toy.f64": 0.1,
        "tokenizer.ggml.tokens": ["a", "bé", "", "😀"],
        "tokenizer.ggml.scores": [0.0, -1.0, -2.5, -3.0],
        "tokenizer.ggml.token_type": [1, 1, 3, 6],
        "toy.booleans": [False, True],
        "toy.empty": [],
    }
    assert all(type(value) is bool for value in checkpoint.metadata["toy.booleans"])  # type: ignore[union-attr]
    assert [(tensor.storage.name, tensor.shape, tensor.rows.shape) for tensor in checkpoint.tensors.values()] == [
        ("F32", (2, 3), (2, 12)),
        ("F16", (4,), (1, 8)),
        ("Q4_0", (2, 32), (2, 18)),
        ("Q8_0", (2, 1, 32), (2, 34)),
    ]
    assert dequantise(checkpoint.tensors["matrix"]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert dequantise(checkpoint.tensors["half"]).tolist() == [1.0, -2.0, 0.5, 65504.0]
    cube = checkpoint.tensors["cube"]
    assert cube.rows.tobytes() == toy.data[128:196]
    assert (cube.name, cube.elements, cube.stored_bytes) == ("cube", 64, 68)
    assert not cube.rows.flags.writeable


def test_version_2_is_read_as_version_3(tmp_path: Path) -> None:
    toy = honest_toy()
    new = open_gguf(toy.write(tmp_path / "3.gguf"))
    toy.version = 2
    old = open_gguf(toy.write(tmp_path / "2.gguf"))
    assert dict(old.metadata) == dict(new.metadata)
    assert old.tensors.keys() == new.tensors.keys()


KEYS = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.é", min_size=1, max_size=12).map("toy.{}".format)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(min_size=1, max_size=20),  # the writer drops keys with empty strings
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5),
    st.lists(st.text(max_size=9), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=1, max_size=5),
)
TENSORS = st.tuples(
    st.sampled_from(list(StorageType)), st.integers(1, 3), st.lists(st.integers(1, 3), min_size=0, max_size=3)
)


@settings(max_examples=60)
@given(
    metadata=st.dictionaries(KEYS, VALUES, max_size=6),
    tensors=st.lists(TENSORS, min_size=1, max_size=5),
    alignment=st.sampled_from([8, 32, 64, 4096]),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_the_gguf_package_writes_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    metadata: dict[str, bool | int | float | str | list[int] | list[str] | list[bool]],
    tensors: list[tuple[StorageType, int, list[int]]],
    alignment: int,
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("written") / "model.gguf"
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "toy")
    writer.add_custom_alignment(alignment)
    for name, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_int32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    written = {}
    for number, (storage, blocks, outer) in enumerate(tensors):
        octets = random.integers(0, 256, (*outer, blocks * storage.block_bytes), np.uint8)
        writer.add_tensor(f"tensor.{number}", octets, raw_dtype=gguf.GGMLQuantizationType(storage.ggml_id))
        written[f"tensor.{number}"] = (storage, (*outer, blocks * storage.block_elements), octets)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_gguf(path)
    read = {name: value for name, value in checkpoint.metadata.items() if not name.startswith("general.")}
    assert read == metadata
    assert checkpoint.tensors.keys() == written.keys()
    for name, (storage, shape, octets) in written.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.storage, tensor.shape) == (storage, shape)
        assert tensor.rows.tobytes() == octets.tobytes()


def test_storage_types_are_the_ones_the_gguf_package_knows() -> None:
    theirs = {int(number): number.name for number in gguf.GGMLQuantizationType}
    ours = {number: storage.name for number, storage in READABLE.items()} | dict(UNREADABLE)
    assert {number: name for number, name in ours.items() if theirs.get(number, name) != name} == {}
    for number, storage in READABLE.items():
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
        assert (storage.block_elements, storage.block_bytes) == sizes


def test_tensors_may_lie_in_any_order_with_gaps_between(tmp_path: Path) -> None:
    toy = ToyGGUF(
        tensors=[tensor_entry("late", (2,), 0, 96), tensor_entry("early", (2,), 0, 0)],
        data=struct.pack("<2f88x2f", 1, 2, 3, 4),
    )
    checkpoint = open_gguf(toy.write(tmp_path / "toy.gguf"))
    assert dequantise(checkpoint.tensors["late"]).tolist() == [3, 4]
    assert dequantise(checkpoint.tensors["early"]).tolist() == [1, 2]


def test_a_file_without_tensors_needs_no_data_section(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(ToyGGUF().header())
    assert dict(open_gguf(path).tensors) == {}


@pytest.mark.parametrize("keys", [[], [key("general.architecture", STRING, "")], [key("general.name", STRING, "x")]])
def test_a_file_must_name_its_architecture(tmp_path: Path, keys: list[bytes]) -> None:
    with pytest.raises(ModelFileError, match=r"general\.architecture: is missing"):
        open_gguf(ToyGGUF(keys=keys).write(tmp_path / "toy.gguf"))


def test_a_large_vocabulary_opens_at_once(tmp_path: Path) -> None:
    tokens = [f"token{number}é" for number in range(152_000)]
    path = ToyGGUF(
        keys=[
            ARCHITECTURE,
            array_key("tokenizer.ggml.tokens", STRING, tokens),
            array_key("tokenizer.ggml.token_type", U32, [], len(tokens), b"".join([scalar(U32, 1)] * len(tokens))),
        ]
    ).write(tmp_path / "vocabulary.gguf")
    start = time.perf_counter()
    checkpoint = open_gguf(path)
    assert time.perf_counter() - start < 1
    assert checkpoint.metadata["tokenizer.ggml.tokens"] == tokens
