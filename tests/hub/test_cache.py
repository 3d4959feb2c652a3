"""The cache under every way a disk, a process or a download can fail."""

import errno
import fcntl
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nybble.errors import DownloadFailed
from nybble.hub import cache as cache_module
from nybble.hub.cache import Fetched, ModelCache, default_directory
from nybble.hub.catalogue import load_catalogue

from .toy import MODEL, sha256


@pytest.fixture
def entry(catalogue):
    return load_catalogue(catalogue).default


@pytest.fixture
def cache(tmp_path):
    return ModelCache(tmp_path / "cache")


def deliver(workspace: Path, content: bytes = MODEL) -> Fetched:
    path = workspace / "model"
    path.write_bytes(content)
    return Fetched(path, sha256(content))


def unexpected(workspace: Path) -> Fetched:
    raise AssertionError("fetched although the file is there")


def leftovers(cache: ModelCache) -> list[Path]:
    return list(cache.directory.rglob(".partial-*"))


def test_store_once_then_find(cache, entry):
    """Guards the life of an entry: absent, stored under its documented path, found without fetching, removed."""
    assert cache.find(entry) is None
    assert not cache.directory.exists()
    path = cache.store(entry, 0, deliver)
    assert path == cache.directory / "models/toy" / sha256(MODEL)[:12] / "Toy-Model.Q4_1.gguf"
    assert path.read_bytes() == MODEL
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert cache.find(entry) == cache.store(entry, 0, unexpected) == path
    assert leftovers(cache) == []
    assert cache.remove("toy") is True
    assert cache.find(entry) is None
    assert cache.remove("toy") is False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("content", [b"", MODEL[:-1], MODEL + b"x", MODEL[:-1] + b"x", b"<!DOCTYPE html>"])
def test_wrong_content_is_never_published(cache, entry, content):
    """Guards against a truncated, longer, or altered download: nothing of it stays."""
    with pytest.raises(DownloadFailed, match=r"toy: Toy-Model\.Q4_1\.gguf from pypi:toy-model==1\.0 has .*expected"):
        cache.store(entry, 0, lambda workspace: deliver(workspace, content))
    assert cache.find(entry) is None
    assert leftovers(cache) == []
    assert cache.store(entry, 0, deliver).read_bytes() == MODEL


def test_a_file_of_the_wrong_size_is_fetched_again(cache, entry):
    """Guards against a damaged file system: the size is checked each time the file is used."""
    path = cache.store(entry, 0, deliver)
    path.write_bytes(MODEL[:100])
    assert cache.find(entry) is None
    assert cache.store(entry, 0, deliver).read_bytes() == MODEL


def test_leftovers_of_killed_runs_are_cleared(cache, entry):
    """Guards the disk: each killed download leaves up to two hundred megabytes."""
    old = cache.directory / "models/toy/.partial-abc"
    (old / "temporary").mkdir(parents=True)
    (old / "temporary" / "half.whl").write_bytes(b"x" * 1000)
    other = cache.directory / "models/other/.partial-abc"
    other.mkdir(parents=True)
    cache.store(entry, 0, deliver)
    assert leftovers(cache) == [other]  # another model's may be in use


def test_order_of_a_power_cut_proof_publication(cache, entry, monkeypatch):
    """Guards the order that a power cut must not see reversed: contents on the disk, rename, directory on the disk."""
    events = []
    real_replace, real_fsync = Path.replace, os.fsync

    def fsync(descriptor):
        events.append(("fsync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        real_fsync(descriptor)

    def rename(path, target):
        events.append(("rename", target.name))
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    path = cache.store(entry, 0, deliver)
    assert events == [("fsync", "model"), ("rename", path.name), ("fsync", path.parent.name)]


def test_a_crash_before_the_rename_leaves_no_file(cache, entry, monkeypatch):
    """Guards against a file under its final name that is not complete."""
    monkeypatch.setattr(cache_module, "_publish", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        cache.store(entry, 0, deliver)
    assert not cache.location(entry).exists()
    assert leftovers(cache) == []


def test_a_full_disk_is_one_line(cache, entry):
    """Guards ENOSPC as the kernel itself raises it."""

    def fill(workspace: Path) -> Fetched:
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")
        raise AssertionError

    with pytest.raises(
        DownloadFailed, match=r"^no space left in the model cache .*: 200 MB are needed, \d+ MB"
    ) as caught:
        cache.store(entry, 200_000_000, fill)
    assert "NYBBLE_CACHE" in str(caught.value)
    assert leftovers(cache) == []


def test_a_disk_too_small_is_noticed_before_the_download(cache, entry, monkeypatch):
    """Guards against a download of minutes that cannot end well."""
    monkeypatch.setattr("nybble.hub.cache._free_bytes", lambda directory: 5_000_000)
    with pytest.raises(DownloadFailed, match="6 MB are needed, 5 MB are free"):
        cache.store(entry, 6_000_000, unexpected)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO, errno.ENOLCK, errno.ENOTSUP])
@pytest.mark.parametrize("place", ["mkdir", "flock", "replace"])
def test_any_disk_error_anywhere_is_one_line(cache, entry, monkeypatch, code, place):
    """Guards read-only and quota-bound disks, broken disks, and network file systems without locks."""

    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(
        *{"mkdir": (Path, "mkdir"), "flock": (fcntl, "flock"), "replace": (Path, "replace")}[place], fail
    )
    with pytest.raises(DownloadFailed, match="NYBBLE_CACHE") as caught:
        cache.store(entry, 0, deliver)
    assert str(cache.directory) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_where_the_cache_should_be(tmp_path, entry):
    """Guards a real refusal of the operating system (this one also works for root)."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadFailed, match=r"cannot write to the model cache .*: Not a directory"):
        ModelCache(tmp_path / "file").store(entry, 0, deliver)


def test_a_read_only_directory(tmp_path, entry):
    """Guards a cache the user may read only: what is there works, what is not is one line."""
    shared = ModelCache(tmp_path)
    path = shared.store(entry, 0, deliver)
    for directory in (tmp_path, tmp_path / "models", tmp_path / "models/toy", tmp_path / "locks"):
        directory.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write anywhere")
    assert shared.store(entry, 0, unexpected) == path
    with pytest.raises(DownloadFailed, match="Permission denied"):
        shared.store(replace(entry, name="other"), 0, deliver)
    for directory in (tmp_path, tmp_path / "models", tmp_path / "models/toy", tmp_path / "locks"):
        directory.chmod(0o700)


def test_a_cache_that_cannot_be_written_still_serves(cache, entry, monkeypatch):
    """Guards read-only caches: finding needs no lock, no directory, no write."""
    path = cache.store(entry, 0, deliver)

    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert cache.store(entry, 0, unexpected) == path


def test_threads_share_one_download(cache, entry):
    """Guards the lock within a process: locks of two open files exclude each other even there."""
    calls = []

    def slow(workspace: Path) -> Fetched:
        calls.append(workspace)
        time.sleep(0.3)
        return deliver(workspace)

    stages = []
    threads = [
        threading.Thread(target=cache.store, args=(entry, 0, slow, lambda *report: stages.append(report)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(calls) == 1
    assert ("waiting for another process that is fetching toy", 0, None) in stages


def test_removal_waits_for_a_download(cache, entry):
    """Guards against removing the directory under a download's feet."""
    started, ended = threading.Event(), []

    def slow(workspace: Path) -> Fetched:
        started.set()
        time.sleep(0.3)
        ended.append(True)
        return deliver(workspace)

    thread = threading.Thread(target=cache.store, args=(entry, 0, slow))
    thread.start()
    assert started.wait(5)
    assert cache.remove("toy")
    assert ended
    thread.join(10)
    assert cache.find(entry) is None


def test_where_the_cache_is(monkeypatch, tmp_path):
    """Guards the order of the variables, and that a relative XDG path is ignored as its specification asks."""
    for name in ("NYBBLE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".cache/nybble"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_directory() == tmp_path / ".cache/nybble"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_directory() == Path("/xdg/nybble")
    monkeypatch.setenv("NYBBLE_CACHE", "~/mine")
    assert default_directory() == tmp_path / "mine"
    monkeypatch.setenv("NYBBLE_CACHE", "here")
    assert default_directory() == Path.cwd() / "here"


def test_no_home_at_all(monkeypatch):
    """Guards containers whose user has no entry and no HOME."""
    for name in ("NYBBLE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(DownloadFailed, match="set NYBBLE_CACHE"):
        default_directory()
