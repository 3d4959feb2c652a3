"""Guards against: waiting on a pipe, tensors that outlive their mapping, memory that is not given back."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path

import numpy as np
import pytest

from nybble.errors import ModelFileError
from nybble.formats.gguf import open_gguf
from nybble.formats.mapped_file import MappedFile

from .toy_gguf import ToyGGUF, honest_toy, tensor_entry


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be opened: No such file or directory"):
        MappedFile(tmp_path / "none.gguf")


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a directory; give the model file inside it"):
        MappedFile(tmp_path)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="is not a regular file"):
        MappedFile(tmp_path / "pipe")


def test_a_device() -> None:
    with pytest.raises(ModelFileError, match="is not a regular file"):
        MappedFile(Path("/dev/zero"))


def test_a_path_that_cannot_exist() -> None:
    with pytest.raises(ModelFileError):
        MappedFile(Path("a\0b"))


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("real")
    assert bytes(MappedFile(tmp_path / "link").data) == b"abc"


def test_a_file_that_is_cut_between_being_measured_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toy"
    path.write_bytes(bytes(10))
    measure = os.fstat

    def measure_then_cut(descriptor: int) -> os.stat_result:
        status = measure(descriptor)
        os.truncate(path, 4)
        return status

    monkeypatch.setattr(os, "fstat", measure_then_cut)
    with pytest.raises(ModelFileError, match="cannot be mapped"):
        MappedFile(path)


def test_tensors_outlive_everything_else(tmp_path: Path) -> None:
    """Use after unmap would crash; so would a mapping that follows the name to another file."""
    path = honest_toy().write(tmp_path / "toy.gguf")
    rows = open_gguf(path).tensors["quantised"].rows
    gc.collect()
    path.unlink()
    path.write_bytes(b"something else")
    assert rows.tobytes() == honest_toy().data[64:100]


def resident_bytes(path: Path) -> int:
    """Bytes of the mapping of ``path`` that this process holds in memory."""
    mapping = Path("/proc/self/smaps").read_text().partition(str(path))[2]
    found = re.search(r"^Rss:\s+(\d+) kB", mapping, re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def large_toy(path: Path) -> Path:
    """Two F32 tensors of 4 MiB that begin and end in the middle of pages."""
    elements = 1 << 20
    entries = [tensor_entry(name, (elements,), 0, offset) for name, offset in (("a", 0), ("b", 4 * elements))]
    return ToyGGUF(tensors=entries, data=np.arange(2 * elements, dtype="<f4").tobytes()).write(path)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_release_gives_memory_back_and_keeps_the_values(tmp_path: Path) -> None:
    path = large_toy(tmp_path / "toy.gguf")
    checkpoint = open_gguf(path)
    first, second = checkpoint.tensors["a"], checkpoint.tensors["b"]
    before = int(first.rows.astype(np.uint64).sum()), int(second.rows.astype(np.uint64).sum())
    assert resident_bytes(path) >= 8 << 20
    checkpoint.release()
    assert resident_bytes(path) <= 1 << 20
    assert before == (int(first.rows.astype(np.uint64).sum()), int(second.rows.astype(np.uint64).sum()))


def test_release_where_the_system_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_gguf(honest_toy().write(tmp_path / "toy.gguf"))
    monkeypatch.delattr("mmap.MADV_DONTNEED")
    checkpoint.release()
