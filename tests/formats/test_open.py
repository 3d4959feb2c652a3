"""Guards against: a file that is not a model reported in a way that leaves the person guessing, or loaded after all."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from nybble.errors import ModelFileError
from nybble.formats.gguf import open_gguf
from nybble.formats.open import open_checkpoint

from .toy_gguf import honest_toy

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 98362432\n"
SAFETENSORS_HEADER = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()

CONTENTS = {
    "html": (b"<!DOCTYPE html>\n<html><body>404</body></html>", "an HTML page of 45 bytes"),
    "html after blanks and a byte order mark": (b"\xef\xbb\xbf\r\n  <HTML>", "an HTML page"),
    "xml error of a store": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an HTML page"),
    "lfs pointer": (POINTER.encode(), f"a git-LFS pointer of {len(POINTER)} bytes, not the 98362432 bytes"),
    "empty": (b"", r"an empty file \(0 bytes\)"),
    "json": (b'{"error": "gated repository"}', "JSON text of 29 bytes"),
    "safetensors": (
        struct.pack("<Q", len(SAFETENSORS_HEADER)) + SAFETENSORS_HEADER + bytes(4),
        "a safetensors file; nybble reads GGUF files",
    ),
    "pickle": (pickle.dumps({"weight": [1.0]}), "a Python pickle, which is never loaded"),
    "gzip": (b"\x1f\x8b\x08\0\0\0\0\0", "gzip-compressed; decompress it first"),
    "ggml": (struct.pack("<I", 0x67676D6C) + bytes(40), "a GGML file from before GGUF"),
    "ggjt": (struct.pack("<II", 0x67676A74, 3) + bytes(40), "a GGJT file from before GGUF"),
    "zeros": (bytes(5000), "1024 zero bytes at the start of 5000"),
    "noise": (b"\xde\xad\xbe\xef" * 8, "unknown content of 32 bytes that begins with de ad be ef de ad be ef"),
    "wrong letter": (b"GGUE" + bytes(60), "unknown content of 64 bytes that begins with 47 47 55 45"),
    "first bytes of a model": (b"GGU", "only the first 3 bytes of a GGUF file"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_not_a_model_is_called_what_it_is(tmp_path: Path, name: str) -> None:
    octets, message = CONTENTS[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(octets)
    with pytest.raises(ModelFileError, match=message) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelFileError, match=message.partition(";")[0]):
        open_gguf(path)


def test_an_onnx_model_goes_to_its_own_reader(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"\x08\x0a\x12\x07pytorch\x1a\x032.1:\x0a")
    with pytest.raises(ModelFileError, match="needs 10 bytes but the file ends"):
        open_checkpoint(path)
    with pytest.raises(ModelFileError, match="this is an ONNX model"):
        open_gguf(path)


@pytest.mark.parametrize("octets", [b"GGUF", b"GGUF\x03\0\0", b"GGUF\x03\0\0\0" + bytes(15)])
def test_a_download_that_stopped_in_the_header(tmp_path: Path, octets: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(octets)
    with pytest.raises(
        ModelFileError, match=f"only {len(octets)} of its 24 bytes are there; the download did not finish"
    ):
        open_checkpoint(path)


def test_a_pytorch_archive_is_refused_for_what_it_can_do(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(1))
    with pytest.raises(ModelFileError, match="PyTorch checkpoint, which is never loaded"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["model.bin", "model", "model.safetensors"])
def test_content_decides_not_the_name(tmp_path: Path, name: str) -> None:
    assert open_checkpoint(honest_toy().write(tmp_path / name)).architecture == "toy"
