"""What a file really is, judged by its first bytes: for the one-line error when it is not what was hoped for."""

from __future__ import annotations

import re
import struct

_HTML = re.compile(rb"<(?:!doctype|html|head|body|\?xml|!--)", re.IGNORECASE)
_LFS_POINTER = re.compile(rb"version https://git-lfs\S*\n(?:.*\n)*?size (\d{1,20})\n?")
_JSON = re.compile(rb"[{\[]\s*[\"{\[\]}]")
# A serialised onnx.ModelProto begins with ir_version (field 1, varint) and goes on with a length-delimited field.
_ONNX = re.compile(rb"\x08[\x01-\x1f][\x12\x1a\x22\x32\x3a\x42]")
_MAGICS = (
    (b"PK\x03\x04", "a ZIP archive or PyTorch checkpoint, which is never loaded because it can run code"),
    (b"\x80", "a Python pickle, which is never loaded because it can run code"),
    (b"\x1f\x8b", "gzip-compressed; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed; decompress it first"),
    (b"lmgg", "a GGML file from before GGUF; convert the original model again"),
    (b"fmgg", "a GGMF file from before GGUF; convert the original model again"),
    (b"tjgg", "a GGJT file from before GGUF; convert the original model again"),
    (b"\x89HDF", "an HDF5 file"),
)


def describe_content(data: memoryview) -> str:
    """What a file with the bytes ``data`` is, said so that it completes the sentence "this is ...".

    Only used to explain a refusal, so a wrong guess is harmless. Looks at no more than the first KiB.
    """
    head = bytes(data[:1024])
    size = len(data)
    if not head:
        return "an empty file (0 bytes); the download did not start or did not finish"
    if head == b"GGUF"[:size]:
        return f"only the first {size} bytes of a GGUF file; the download did not finish"
    if (pointer := _LFS_POINTER.match(head)) is not None:
        expected = int(pointer[1])
        return f"a git-LFS pointer of {size} bytes, not the {expected} bytes it stands for; run 'git lfs pull'"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _HTML.match(text):
        return f"an HTML page of {size} bytes, most likely a web server's error page saved as a model; download again"
    if _is_safetensors(head, size):
        return "a safetensors file"
    if _JSON.match(text):
        return f"JSON text of {size} bytes, most likely a web server's reply saved as a model; download again"
    if looks_like_onnx(data):
        return "an ONNX model"
    for magic, description in _MAGICS:
        if head.startswith(magic):
            return description
    if not any(head):
        return f"{len(head)} zero bytes at the start of {size}; the download was never filled in"
    return f"unknown content of {size} bytes that begins with {head[:8].hex(' ')}"


def looks_like_onnx(data: memoryview) -> bool:
    """Whether a file with the bytes ``data`` begins as ONNX models do."""
    return _ONNX.match(bytes(data[:3])) is not None


def looks_like_safetensors(data: memoryview) -> bool:
    """Whether a file with the bytes ``data`` begins as safetensors files do."""
    return _is_safetensors(bytes(data[:9]), len(data))


def _is_safetensors(head: bytes, size: int) -> bool:
    return size > 9 and head[8:9] == b"{" and int(struct.unpack_from("<Q", head)[0]) <= size - 8
