"""Guards against files made to crash, hang, exhaust memory, or read outside themselves: the known attacks on GGUF.

The marks G1 to G12 group them: dimensions, counts, string lengths, array lengths, wrapping products, wrapping sums,
alignment, placement, unknown ids and duplicates, sizes beyond the file, vocabulary lengths, shards.
Each must end in a typed error that names the place, at once and without allocating what the file claims.
"""

from __future__ import annotations

import os
import re
import struct
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from nybble.errors import ModelFileError, NybbleError, UnsupportedFeature
from nybble.formats.gguf import open_gguf

from .toy_gguf import (
    ARCHITECTURE,
    ARRAY,
    BOOLEAN,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    ToyGGUF,
    array_key,
    honest_toy,
    key,
    scalar,
    string,
    tensor_entry,
)


def one_tensor(
    extents: Iterable[int], storage: int = 0, offset: int = 0, dimensions: int | None = None, data: int = 4096
) -> ToyGGUF:
    return ToyGGUF(tensors=[tensor_entry("weight", tuple(extents), storage, offset, dimensions)], data=bytes(data))


def two_tensors(first: tuple[int, int], second: tuple[int, int], data: int = 4096) -> ToyGGUF:
    """Two F32 vectors, each given as (elements, offset)."""
    entries = [tensor_entry(name, (extent,), 0, offset) for name, (extent, offset) in {"a": first, "b": second}.items()]
    return ToyGGUF(tensors=entries, data=bytes(data))


def with_keys(*keys: bytes) -> ToyGGUF:
    return ToyGGUF(keys=[ARCHITECTURE, *keys])


def aligned(kind: int, value: float | str) -> ToyGGUF:
    return with_keys(key("general.alignment", kind, value))


LONGEST = 2**64 - 1

ATTACKS: dict[str, tuple[ToyGGUF, str]] = {
    # G1: number of dimensions
    "G1 no dimensions": (one_tensor(()), "weight.*0 dimensions; expected 1 to 4"),
    "G1 five dimensions": (one_tensor((1,) * 5), "5 dimensions"),
    "G1 2^32-1 dimensions": (one_tensor((1,), dimensions=2**32 - 1), "4294967295 dimensions"),
    "G1 fewer extents than said": (one_tensor((1,), dimensions=4), "weight"),
    "G1 an extent of zero": (one_tensor((8, 0)), "an extent of 0"),
    # G2: counts
    "G2 2^64-1 keys": (ToyGGUF(key_count=LONGEST), f"claims {LONGEST} metadata entries"),
    "G2 2^60 keys": (ToyGGUF(key_count=2**60), "metadata entries"),
    "G2 one key more": (ToyGGUF(key_count=2), "number|header|key 1"),
    "G2 2^64-1 tensors": (ToyGGUF(tensor_count=LONGEST), f"claims {LONGEST} tensors"),
    "G2 2^58 tensors": (ToyGGUF(tensor_count=2**58), "tensors"),
    "G2 more keys than any model has": (
        ToyGGUF(key_count=2**16 + 1, data=bytes(14 << 16)),
        "claims 65537 metadata entries; at most 65536",
    ),
    "G2 more tensors than any model has": (
        ToyGGUF(tensor_count=2**16 + 1, data=bytes(34 << 16)),
        "claims 65537 tensors; at most 65536",
    ),
    "G2 one tensor more": (ToyGGUF(tensor_count=1), "claims 1 tensors"),
    # G3: string lengths
    "G3 value of 2^64-1 bytes": (
        with_keys(string("toy.name") + struct.pack("<I", STRING) + string("x", LONGEST)),
        "toy.name.*a string of 18446744073709551615 bytes",
    ),
    "G3 value of 1 GiB": (
        with_keys(string("toy.name") + struct.pack("<I", STRING) + string("x", 2**30)),
        "a string of 1073741824 bytes is longer",
    ),
    "G3 value one byte past the end": (
        with_keys(string("toy.name") + struct.pack("<I", STRING) + string("x" * 9, 34)),
        "toy.name.*needs 34 bytes but the file of 128 bytes ends after 33",
    ),
    "G3 key of 2^64-1 bytes": (with_keys(string("k" * 20, LONGEST)), "key 1.*longer than the 65535"),
    "G3 key of 1 GiB": (with_keys(string("k" * 20, 2**30)), "key 1"),
    "G3 tensor name of 2^64-1 bytes": (ToyGGUF(tensors=[string("t" * 40, LONGEST)]), "tensor 0"),
    "G3 tensor name of 1 KiB": (ToyGGUF(tensors=[string("t" * 1024)], data=bytes(64)), "longer than the 256 allowed"),
    # G4: array lengths
    **{
        f"G4 array of kind {kind} with {count} elements": (
            with_keys(array_key("toy.list", kind, [], count, bytes(4))),
            "toy.list",
        )
        for kind in range(13)
        if kind != ARRAY
        for count in (33, 2**31, 2**61 + 1, 2**63, LONGEST)
    },
    # G5: products that wrap
    "G5 2^42+1 squared": (one_tensor((2**42 + 1, 2**42 + 1)), "the product"),
    "G5 wraps to a small size": (one_tensor((2**32, 2**32, 1)), "the product"),
    "G5 wraps to one": (one_tensor((LONGEST, LONGEST)), "the product"),
    "G5 elements fit, bytes wrap": (one_tensor((2**62,)), "the product"),
    "G5 bytes of blocks wrap": (one_tensor((2**63 - 32, 1), storage=8), "the product"),
    "G5 passes the sign bit": (one_tensor((2**63,)), "the product"),
    "G5 large but honest": (one_tensor((1024, 1024)), "are missing"),
    # G6: sums that wrap
    "G6 offset and size wrap": (one_tensor((8,), offset=2**64 - 32), "weight: ends at byte 184467"),
    "G6 padded sizes wrap": (two_tensors((2**61 - 4, 0), (2**61 - 4, 2**63 - 32)), "are missing"),
    "G6 a second tensor wraps back": (two_tensors((8, 2**64 - 64), (8, 0)), "are missing"),
    # G7: alignment
    **{
        f"G7 alignment {value}": (aligned(U32, value), f"general.alignment.*power of two.*found {value}")
        for value in (0, 1, 4, 7, 24, 33, 2**21, 2**31, 2**32 - 1)
    },
    "G7 alignment as u64": (aligned(U64, 32), "general.alignment.*expected a u32, found U64"),
    "G7 alignment as i32": (aligned(I32, 32), "expected a u32, found I32"),
    "G7 alignment as u8": (aligned(U8, 32), "expected a u32, found U8"),
    "G7 alignment as f32": (aligned(F32, 32.0), "expected a u32, found F32"),
    "G7 alignment as text": (aligned(STRING, "32"), "expected a u32, found STRING"),
    "G7 alignment as an array": (with_keys(array_key("general.alignment", U32, [32])), "found an array of U32"),
    # G8: placement
    "G8 unaligned": (one_tensor((8,), offset=4), "offset 4 is not a multiple of the alignment 32"),
    "G8 aligned for another alignment": (
        ToyGGUF(
            keys=[ARCHITECTURE, key("general.alignment", U32, 64)],
            tensors=[tensor_entry("weight", (8,), 0, 32)],
            data=bytes(128),
            alignment=64,
        ),
        "offset 32 is not a multiple of the alignment 64",
    ),
    "G8 past the end": (one_tensor((8,), offset=4096), "are missing"),
    "G8 last byte past the end": (one_tensor((8,), data=31), "1 are missing"),
    "G8 same place": (two_tensors((8, 0), (8, 0)), "begins at offset 0, inside a"),
    "G8 overlap": (two_tensors((9, 0), (8, 32)), "b: begins at offset 32, inside a"),
    "G8 overlap in the other order": (two_tensors((8, 32), (9, 0)), "a: begins at offset 32, inside b"),
    "G8 inside": (two_tensors((64, 0), (8, 64)), "inside a"),
    "G8 row is not whole blocks": (one_tensor((33, 32), storage=2), "rows of 33 elements; Q4_0 needs a multiple of 32"),
    "G8 blocks across rows": (one_tensor((16, 2), storage=2), "rows of 16 elements"),
    "G8 half a block of 256": (one_tensor((128, 2), storage=12), "Q4_K needs a multiple of 256"),
    # G9: unknown ids and duplicates
    **{
        f"G9 storage type {number}": (one_tensor((32,), storage=number), "unknown storage type|stored as")
        for number in (4, 5, 9, 10, 16, 24, 28, 31, 33, 36, 39, 42, 255, 2**31, 2**32 - 1)
    },
    **{
        f"G9 value kind {number}": (
            with_keys(string("toy.value") + struct.pack("<IQ", number, 0)),
            f"toy.value.*unknown value kind {number}",
        )
        for number in (13, 255, 2**31, 2**32 - 1)
    },
    "G9 element kind 13": (with_keys(array_key("toy.list", 13, [], 1, bytes(8))), "unknown value kind 13"),
    "G9 array of arrays": (
        with_keys(array_key("toy.list", ARRAY, [], 1, struct.pack("<IQ", U8, 1) + b"\0")),
        "toy.list: an array of arrays",
    ),
    "G9 arrays nested a thousand deep": (
        with_keys(array_key("toy.list", ARRAY, [], 1, struct.pack("<IQ", ARRAY, 1) * 1000)),
        "an array of arrays",
    ),
    "G9 key twice": (with_keys(key("toy.a", U8, 1), key("toy.a", U8, 1)), "toy.a.*this key appears twice"),
    "G9 architecture twice": (with_keys(ARCHITECTURE), "appears twice"),
    "G9 tensor twice": (
        ToyGGUF(tensors=[tensor_entry("weight", (8,), 0, offset) for offset in (0, 32)], data=bytes(64)),
        "weight.*this tensor appears twice",
    ),
    "G9 boolean of 2": (with_keys(key("toy.flag", BOOLEAN, 2)), "a boolean is 0 or 1, found 2"),
    "G9 boolean of 255 in an array": (with_keys(array_key("toy.flags", BOOLEAN, [0, 255])), "0 or 1, found 255"),
    "G9 empty key": (with_keys(key("", U8, 1)), "the name is empty"),
    "G9 key that rewrites the terminal": (with_keys(key("\x1b[2J", U8, 1)), "cannot be printed"),
    "G9 key that is not UTF-8": (with_keys(key(b"toy.\xff", U8, 1)), "key 1.*not valid UTF-8"),
    "G9 value that is not UTF-8": (with_keys(key("toy.text", STRING, b"\xc3")), "toy.text.*not valid UTF-8"),
    "G9 empty tensor name": (ToyGGUF(tensors=[tensor_entry("", (8,), 0, 0)], data=bytes(64)), "the name is empty"),
    "G9 tensor name with a newline": (
        ToyGGUF(tensors=[tensor_entry("a\nb", (8,), 0, 0)], data=bytes(64)),
        "cannot be printed",
    ),
    # G10: sizes beyond the file
    **{
        f"G10 {storage} rows beyond the file": (
            one_tensor((256, 4000), storage=storage),
            "weight: ends at byte .* but the file has",
        )
        for storage in (0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30)
    },
    # G11: vocabulary
    "G11 fewer scores than tokens": (
        with_keys(
            array_key("tokenizer.ggml.tokens", STRING, ["a", "b"]), array_key("tokenizer.ggml.scores", F32, [0.0])
        ),
        "tokenizer.ggml.scores: expected one value for each of 2 tokens, found 1",
    ),
    "G11 more types than tokens": (
        with_keys(
            array_key("tokenizer.ggml.token_type", I32, [1, 1]), array_key("tokenizer.ggml.tokens", STRING, ["a"])
        ),
        "token_type: expected one value for each of 1 tokens, found 2",
    ),
    "G11 tokens as numbers": (
        with_keys(array_key("tokenizer.ggml.tokens", U32, [1])),
        "expected an array of strings, found an array of U32",
    ),
    "G11 tokens as one string": (with_keys(key("tokenizer.ggml.tokens", STRING, "a")), "expected an array of strings"),
    "G11 a token longer than the file": (
        with_keys(array_key("tokenizer.ggml.tokens", STRING, [], 2, string("a") + string("b", 2**31))),
        r"tokenizer.ggml.tokens\[1\]",
    ),
    "G11 a token of 2^64-1 bytes": (
        with_keys(array_key("tokenizer.ggml.tokens", STRING, [], 2, string("a") + string("b", LONGEST))),
        r"tokenizer.ggml.tokens\[1\]",
    ),
    "G11 a token that is not UTF-8": (
        with_keys(array_key("tokenizer.ggml.tokens", STRING, ["a", b"\xff"])),
        r"tokenizer.ggml.tokens\[1\].*not valid UTF-8",
    ),
    "G11 architecture as a number": (ToyGGUF(keys=[key("general.architecture", U32, 1)]), "expected a string"),
    "G11 template as an array": (
        with_keys(array_key("tokenizer.chat_template", STRING, ["a"])),
        "tokenizer.chat_template.*expected a string, found an array",
    ),
    # Versions and byte order
    "version 0": (ToyGGUF(version=0), "GGUF version 0; nybble reads little-endian versions 2 and 3"),
    "version 1": (ToyGGUF(version=1), "GGUF version 1 .2023."),
    "version 4": (ToyGGUF(version=4), "GGUF version 4"),
    "big-endian": (ToyGGUF(version=3 << 24), "a big-endian GGUF file"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_ends_in_one_typed_line(tmp_path: Path, name: str) -> None:
    toy, message = ATTACKS[name]
    path = toy.write(tmp_path / "attack.gguf")
    start = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(NybbleError, match=message) as caught:
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - start < 1
    assert isinstance(caught.value, ModelFileError | UnsupportedFeature)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_files_that_attacks_start_from_are_good(tmp_path: Path) -> None:
    """Otherwise an attack could be refused for the wrong reason."""
    for number, toy in enumerate(
        (honest_toy(), ToyGGUF(), one_tensor((8,)), one_tensor((32, 4), storage=2), two_tensors((8, 0), (8, 32)))
    ):
        open_gguf(toy.write(tmp_path / f"{number}.gguf"))
    for alignment in (8, 16, 64, 4096):
        toy = one_tensor((8,))
        toy.keys.append(key("general.alignment", U32, alignment))
        toy.alignment = alignment
        open_gguf(toy.write(tmp_path / f"aligned-{alignment}.gguf"))


def test_unsupported_and_unknown_storage_types_are_told_apart(tmp_path: Path) -> None:
    path = one_tensor((256,), storage=10).write(tmp_path / "toy.gguf")
    with pytest.raises(UnsupportedFeature, match=r"weight: stored as Q2_K, .* it reads F32, F16, Q4_0, .*BF16"):
        open_gguf(path)
    path = one_tensor((256,), storage=200).write(tmp_path / "toy2.gguf")
    with pytest.raises(ModelFileError, match=r"weight \(byte \d+\): unknown storage type 200"):
        open_gguf(path)


def test_a_long_key_is_not_echoed_whole(tmp_path: Path) -> None:
    path = with_keys(key("\a" * 60000, U8, 1)).write(tmp_path / "toy.gguf")
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    assert len(str(caught.value)) < 1000


def test_the_arrays_of_a_file_have_a_limit_in_all(tmp_path: Path) -> None:
    """Memory: a list costs eight times the bytes of the file, so honest lengths alone do not bound it."""
    arrays = [array_key(f"toy.{number}", U8, [], 3 << 20, bytes(3 << 20)) for number in range(2)]
    path = with_keys(*arrays).write(tmp_path / "toy.gguf")
    with pytest.raises(ModelFileError, match=re.escape("toy.1 (byte")):
        open_gguf(path)


def test_metadata_has_a_limit_in_a_large_file(tmp_path: Path) -> None:
    """Memory: of a file of many gigabytes only so much may be metadata."""
    path = tmp_path / "sparse.gguf"
    text = string("toy.text") + struct.pack("<I", STRING)
    toy = with_keys(*(key(f"toy.{number}", U8, 0) for number in range(3)))
    toy.keys.append(text + string("", 60 << 20))
    toy.key_count = len(toy.keys) + 2
    header = toy.header()
    with path.open("wb") as file:
        file.write(header)
        for number in (1, 2):
            file.seek(60 << 20, os.SEEK_CUR)
            file.write(string(f"toy.text{number}") + struct.pack("<I", STRING) + scalar(U64, 60 << 20))
        file.truncate(300 << 20)
    with pytest.raises(ModelFileError, match=r"toy\.text2 .*needs 62914560 bytes but the 134217728 bytes that nybble"):
        open_gguf(path)
