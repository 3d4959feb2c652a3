"""The directory of the packed cache: what is found, what is evicted, and what killed and racing processes leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nybble import _native
from nybble.formats import file_identity
from nybble.formats.file_identity import identify
from nybble.packed import store as store_module
from nybble.packed.entry import write_entry
from nybble.packed.store import PackedStore, Source

WEIGHTS = 3 << 20

SAVE = """
import os, sys, time
from pathlib import Path
from nybble import _native
from nybble.formats import file_identity
from nybble.formats.file_identity import identify
from nybble.packed.entry import write_entry
from nybble.packed.store import PackedStore, Source
file_identity.SETTLED_SECONDS = -1
model, cache, slow = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
memory = _native.WeightMemory(3 << 20)
def write(descriptor):
    os.write(descriptor, b"begun")
    print("writing", flush=True)
    time.sleep(slow)
    os.lseek(descriptor, 0, os.SEEK_SET)
    write_entry(descriptor, {"model": str(model)}, [b""], memory, 3 << 20)
files = (identify(model),)
print(PackedStore(cache).save(Source(files[0], files), "int8", 3 << 20, write), flush=True)
"""


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tests are young."""
    monkeypatch.setattr(file_identity, "SETTLED_SECONDS", -1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def save(store: PackedStore, model: Path, options: str = "int8") -> bool:
    memory = _native.WeightMemory(WEIGHTS)
    source = Source(identify(model), (identify(model),))

    def write(descriptor: int) -> None:
        write_entry(descriptor, {"model": str(model), "options": options}, [b""], memory, WEIGHTS)

    return store.save(source, options, WEIGHTS, write)


def found(store: PackedStore, model: Path, options: str = "int8") -> bool:
    entry = store.find(model, options, 1)
    if entry is not None:
        entry.finish()
    return entry is not None


def background(model: Path, cache: Path, slow: float) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", SAVE, str(model), str(cache), str(slow)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_found_again_and_for_the_same_purpose_only(tmp_path: Path, model: Path) -> None:
    store = PackedStore(tmp_path / "cache")
    assert not found(store, model)
    assert save(store, model)
    assert found(store, model)
    assert not found(store, model, "f32")
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    assert not found(store, copy)  # nobody knows yet what it holds
    model.rename(tmp_path / "renamed.gguf")
    assert not found(store, tmp_path / "renamed.gguf")


@pytest.mark.parametrize("keep_times", [False, True])
def test_a_changed_file_is_another_model(tmp_path: Path, model: Path, keep_times: bool) -> None:
    """Also one of equal size whose modification time was set back."""
    store, before = PackedStore(tmp_path / "cache"), model.stat()
    assert save(store, model)
    time.sleep(0.02)  # the clock of file systems ticks every few milliseconds
    model.write_bytes(b"WEIGHTS")
    if keep_times:
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not found(store, model)


def test_a_file_that_was_just_written_is_not_trusted(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change within the same tick of the clock would not show."""
    monkeypatch.setattr(file_identity, "SETTLED_SECONDS", 60)
    assert not save(PackedStore(tmp_path / "cache"), model)


def test_a_file_that_changed_while_it_was_packed_is_not_stored(tmp_path: Path, model: Path) -> None:
    store, opened = PackedStore(tmp_path / "cache"), identify(model)
    time.sleep(0.02)
    model.write_bytes(b"changed")
    assert not store.save(Source(opened, (opened,)), "int8", WEIGHTS, lambda descriptor: pytest.fail("stored"))


def test_every_file_of_a_model_counts(tmp_path: Path, model: Path) -> None:
    """The file that is named is only one of those that are read."""
    store, companion = PackedStore(tmp_path / "cache"), tmp_path / "companion"
    companion.write_bytes(b"more weights")
    memory, files = _native.WeightMemory(WEIGHTS), (identify(model), identify(companion))

    def write(descriptor: int) -> None:
        write_entry(descriptor, {}, [], memory, WEIGHTS)

    assert store.save(Source(files[0], files), "int8", WEIGHTS, write)
    assert found(store, model)
    time.sleep(0.02)
    companion.write_bytes(b"less weights")
    assert not found(store, model)
    companion.unlink()
    assert not found(store, model)


def test_other_code_does_not_find_it(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PackedStore(tmp_path / "cache")
    assert save(store, model)
    monkeypatch.setattr(store_module, "__version__", "another")
    assert not found(store, model)


def test_broken_entries_are_removed(tmp_path: Path, model: Path) -> None:
    store = PackedStore(tmp_path / "cache")
    assert save(store, model)
    (entry,) = store.directory.glob("*.packed")
    entry.write_bytes(b"junk")
    assert [stored.model for stored in store.models()] == ["broken: it does not begin as an entry"]
    assert not found(store, model)
    assert not entry.exists()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"content": "../../x", "files": []}', b'{"content": 7}'])
def test_damaged_knowledge_is_no_knowledge(tmp_path: Path, model: Path, damage: bytes) -> None:
    store = PackedStore(tmp_path / "cache")
    assert save(store, model)
    (known,) = (store.directory / "files").iterdir()
    known.write_bytes(damage)
    assert not found(store, model)
    assert save(store, model) and found(store, model)


def test_the_least_recently_used_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, models = PackedStore(tmp_path / "cache"), []
    monkeypatch.setattr(store_module, "MOST_BYTES", 3 * (WEIGHTS + 8192))
    for number in range(3):
        models.append(tmp_path / f"{number}.gguf")
        models[-1].write_bytes(bytes([number]))
        assert save(store, models[-1])
        time.sleep(0.02)
    assert found(store, models[0])
    models.append(tmp_path / "last.gguf")
    models[-1].write_bytes(b"last")
    assert save(store, models[-1])
    assert [found(store, path) for path in models] == [True, False, True, True]
    monkeypatch.setattr(store_module, "MOST_BYTES", WEIGHTS - 1)
    models[0].write_bytes(b"changed")
    assert not save(store, models[0])
    assert found(store, models[-1])


def test_list_and_remove(tmp_path: Path, model: Path) -> None:
    store = PackedStore(tmp_path / "cache")
    assert store.models() == [] == store.remove(None)
    assert save(store, model) and save(store, model, "f32")
    assert {(stored.model, stored.options) for stored in store.models()} == {(str(model), "int8"), (str(model), "f32")}
    assert all(stored.bytes > WEIGHTS for stored in store.models())
    assert store.remove("other.gguf") == []
    assert len(store.remove(store.models()[0].name)) == 1
    assert len(store.remove("model.gguf")) == 1
    assert save(store, model)
    assert len(store.remove(None)) == 1
    assert [path.name for path in store.directory.rglob("*")] == ["files"]


def test_a_killed_writer_leaves_nothing_that_counts(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    store, writer = PackedStore(cache), background(model, cache, 60)
    assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
    assert store.models() == []
    (partial,) = store.directory.glob(".partial-*")
    other = tmp_path / "other.gguf"
    other.write_bytes(b"other")
    assert save(store, other)
    assert partial.exists()  # its writer lives
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert not found(store, model) and found(store, other)
    assert save(store, model)
    assert not partial.exists()
    assert found(store, model)


def test_processes_may_store_the_same_at_once(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    writers = [background(model, cache, 0.3) for _ in range(3)]
    assert [writer.communicate()[0] for writer in writers] == ["writing\nTrue\n"] * 3
    assert found(PackedStore(cache), model)
    assert len(PackedStore(cache).models()) == 1
    assert not list((cache / "packed").glob(".partial-*"))


def test_a_failed_write_leaves_nothing(tmp_path: Path, model: Path) -> None:
    store = PackedStore(tmp_path / "cache")

    def write(descriptor: int) -> None:
        os.write(descriptor, b"half")
        raise KeyboardInterrupt

    files = (identify(model),)
    with pytest.raises(KeyboardInterrupt):
        store.save(Source(files[0], files), "int8", WEIGHTS, write)
    assert [path.name for path in store.directory.iterdir()] == []
