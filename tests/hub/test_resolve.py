"""The order in which a name is looked up, the words when nothing is found, the list, and removal."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from nybble.errors import ModelNotFound, UnsupportedFeature
from nybble.hub import huggingface_cache
from nybble.hub.cache import ModelCache
from nybble.hub.catalogue import load_catalogue
from nybble.hub.listing import known_models, remove
from nybble.hub.progress import TerminalProgress, watched
from nybble.hub.resolve import resolve

from .toy import MODEL


@pytest.fixture(autouse=True)
def own_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("NYBBLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_cache, "_directory", lambda: tmp_path / "hub")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def loaded(catalogue):
    return load_catalogue(catalogue)


@pytest.fixture
def stored(loaded):
    """The toy's file, in the cache already."""
    path = ModelCache().location(loaded.default)
    path.parent.mkdir(parents=True)
    path.write_bytes(MODEL)
    return path


def test_the_order_of_the_places(loaded, stored, tmp_path, monkeypatch):
    """Guards the documented order: the default, a catalogue name even if a file has it too, then any path."""
    (tmp_path / "toy").write_text("a file by the catalogue's name")
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "repo").write_text("a file that looks like a repository")
    assert resolve(None, catalogue=loaded) == resolve("toy", catalogue=loaded) == stored
    assert resolve("./toy", catalogue=loaded) == Path("toy")
    assert resolve("org/repo", catalogue=loaded) == Path("org/repo")
    assert resolve(str(tmp_path), catalogue=loaded) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/toy", catalogue=loaded) == tmp_path / "toy"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("toi", ["no file {here}/toi", "did you mean toy?", "the hub was not asked, since"]),
        ("TOY", ["did you mean toy?"]),
        ("zzz", ["not in the catalogue, which has toy"]),
        ("models/tiny.gguf", ["no file {here}/models/tiny.gguf", "the hub was not asked"]),
        ("/nowhere/x.gguf", ["no file /nowhere/x.gguf"]),
        ("", ["an empty name"]),
        ("  ", ["an empty name"]),
        ("a\0b", ["embedded null byte"]),
        ("a\nb\x1b[2J", [r"a\nb\x1b[2J"]),
        ("a" * 5000, ["File name too long"]),
        ("catalogue.toml/x", ["Not a directory"]),
        (
            "org/repo",
            [
                "no file {here}/org/repo",
                "has toy",
                "org/repo is not in the Hugging Face cache, and offline mode forbids",
            ],
        ),
    ],
)
def test_not_found_lists_every_place(loaded, tmp_path, name, parts):
    """Guards the message: every place that was looked at, in one line, for any name a person can type."""
    with pytest.raises(ModelNotFound) as caught:
        resolve(name, catalogue=loaded, offline=True)
    for part in parts:
        assert part.format(here=tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_offline_without_the_file(loaded, tmp_path):
    """Guards against a download behind the back of offline mode."""
    with pytest.raises(ModelNotFound, match=r"toy is not in the model cache \(.*Toy-Model\.Q4_1\.gguf\), and offline"):
        resolve(None, catalogue=loaded, offline=True)
    assert not (tmp_path / "cache").exists()


def test_listing_and_removal(loaded, stored, tmp_path):
    """Guards `nybble models`: state and place of each model, ours and those of the shared cache."""
    snapshots = tmp_path / "hub/models--org--repo-GGUF/snapshots"
    for commit, files in {
        "old": ["toy-Q8_0.gguf"],
        "new": ["toy-Q4_0.gguf", "mmproj-toy-f16.gguf", "README.md"],
    }.items():
        (snapshots / commit).mkdir(parents=True)
        for file in files:
            (snapshots / commit / file).write_bytes(b"12345")
    (snapshots / "new" / "gone-Q4_0.gguf").symlink_to("../../blobs/deleted")
    shards = tmp_path / "hub/models--org--split/snapshots/one/big"
    shards.mkdir(parents=True)
    (shards / "m-Q8_0-00001-of-00002.gguf").write_bytes(b"1")
    listed = {model.name: model for model in known_models(loaded)}
    assert list(listed) == ["toy", "org/repo-GGUF:toy-Q4_0.gguf", "org/repo-GGUF:toy-Q8_0.gguf"]
    toy, other = listed["toy"], listed["org/repo-GGUF:toy-Q8_0.gguf"]
    assert (toy.present, toy.path, toy.size, toy.source, toy.default) == (
        True,
        stored,
        len(MODEL),
        str(loaded.default.source),
        True,
    )
    assert (other.present, other.size, other.quantisation) == (True, 5, "Q8_0")
    assert resolve(other.name, catalogue=loaded, offline=True) == other.path
    (shards / "m-Q8_0-00002-of-00002.gguf").write_bytes(b"22")
    split = known_models(loaded)[-1]
    assert (split.name, split.size) == ("org/split:big/m-Q8_0-00001-of-00002.gguf", 3)

    assert remove("toy", loaded) is True
    assert remove("toy", loaded) is False
    assert known_models(loaded)[0].present is False
    with pytest.raises(UnsupportedFeature, match="hf cache rm model/org/repo-GGUF"):
        remove(other.name, loaded)
    for name in ("../hub", "nothing", ""):
        with pytest.raises(ModelNotFound, match="which has toy"):
            remove(name, loaded)
    assert other.path.exists()


def test_the_newest_snapshot_wins(loaded, tmp_path):
    """Guards against an old file of the same name after the repository moved on."""
    for age, commit in ((100, "old"), (0, "new")):
        folder = tmp_path / "hub/models--org--repo/snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "toy-Q4_0.gguf").write_text(commit)
        os.utime(folder, (1e9 - age, 1e9 - age))
    assert resolve("org/repo:Q4_0", catalogue=loaded, offline=True).read_text() == "new"


def test_growth_is_reported(tmp_path):
    """Guards the view into other programs' downloads: never above the total, complete only at the end."""
    (tmp_path / "before").write_bytes(b"x" * 50)
    reports = []

    def grow(sizes, fail=False):
        with watched(tmp_path, "stage", 100, lambda stage, done, total: reports.append(done)):
            for number, size in enumerate(sizes):
                (tmp_path / f"file{number}").write_bytes(b"x" * size)
                seen = len(reports)
                while len(reports) == seen:
                    pass
            if fail:
                raise KeyboardInterrupt

    grow([40, 500])
    assert (reports[0], reports[-1]) == (0, 100)
    assert 40 in reports
    assert all(0 <= done <= 100 for done in reports)
    reports.clear()
    shutil.rmtree(tmp_path / "hub", ignore_errors=True)
    with pytest.raises(KeyboardInterrupt):
        grow([1], fail=True)
    assert reports[-1] != 100


def test_the_terminal_draws_nothing_unasked(capfd):
    """Guards silence where nothing is fetched, and standard output, which belongs to the answer."""
    with TerminalProgress():
        pass
    assert capfd.readouterr() == ("", "")
    with TerminalProgress() as progress:
        progress("downloading [odd] name", 0, 100)
        progress("downloading [odd] name", 100, 100)
        progress("waiting", 0, None)
    output, errors = capfd.readouterr()
    assert output == ""
    assert "downloading [odd] name" in errors


@pytest.mark.skipif("NYBBLE_TEST_GGUF" in os.environ, reason="the model is not the catalogue's")
def test_the_real_model_is_the_one_the_catalogue_describes(default_model_path):
    """Guards the catalogue's checksum, against a file that may have been in the cache for long."""
    with default_model_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == load_catalogue().default.sha256
