"""The catalogue that ships is sound, and every mistake in one is named."""

from pathlib import Path

import pytest

from nybble.errors import ModelFileError
from nybble.hub.catalogue import HubSource, PyPISource, load_catalogue
from nybble.hub.choice import list_choices

from .toy import COMMIT, MEMBER, sha256, write_catalogue, write_table, write_wheel

HUB = {
    "title": "T",
    "source": "hub:org/repo",
    "file": "sub/model-Q8_0.gguf",
    "revision": COMMIT,
    "size": 5,
    "sha256": sha256(b""),
    "quantisation": "Q8_0",
    "license": "mit",
}


def test_the_shipped_catalogue():
    """Guards the data file itself: readable, a default, and a quantisation that its file name agrees with."""
    catalogue = load_catalogue()
    assert catalogue.default.name == "smollm2-135m"
    for name, entry in catalogue.entries.items():
        assert entry.name == name
        assert list_choices([entry.source.file])[0].quantisation == entry.quantisation


def test_both_kinds_of_source(tmp_path):
    """Guards the meaning of each key."""
    wheel = write_wheel(tmp_path)
    toy = load_catalogue(write_catalogue(tmp_path, wheel)).default
    digest = sha256(wheel.read_bytes())
    assert toy.source == PyPISource("toy-model", "1.0", MEMBER, wheel.stat().st_size, digest)
    assert (toy.file_name, str(toy.source)) == ("Toy-Model.Q4_1.gguf", "pypi:toy-model==1.0")
    hub = load_catalogue(write_table(tmp_path / "hub.toml", other=HUB | {"default": True})).default
    assert hub.source == HubSource("org/repo", COMMIT, "sub/model-Q8_0.gguf")
    assert (hub.file_name, str(hub.source)) == ("model-Q8_0.gguf", "hub:org/repo")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"title": None}, "title"),
        ({"title": ""}, "title"),
        ({"source": "ftp://x"}, "source"),
        ({"source": "pypi:toy-model"}, "source"),
        ({"source": "pypi:toy model==1.0"}, "source"),
        ({"source": "pypi:--index-url==1"}, "source"),
        ({"member": "../x.gguf"}, "member"),
        ({"member": "/x.gguf"}, "member"),
        ({"member": "a//x.gguf"}, "member"),
        ({"member": "a\\x.gguf"}, "member"),
        ({"member": 5}, "member"),
        ({"size": 0}, "size"),
        ({"size": True}, "size"),
        ({"size": "5"}, "size"),
        ({"sha256": "0" * 63}, "sha256"),
        ({"sha256": "G" * 64}, "sha256"),
        ({"wheel": {"size": 5}}, "[toy.wheel] sha256"),
        ({"wheel": None}, "[toy.wheel]"),
        ({"wheel": {"size": 5, "sha256": "0" * 64, "url": "x"}}, "[toy.wheel] url"),
        ({"wheel": {"size": -5, "sha256": "0" * 64}}, "[toy.wheel] size"),
        ({"default": "yes"}, "default"),
        ({"default": False}, "default"),
        ({"revision": COMMIT}, "revision"),
        ({"licence": "mit"}, "licence"),
    ],
)
def test_mistakes_are_named(tmp_path, changes, place):
    """Guards against an entry that fails later and elsewhere: a typo, a missing checksum, a path out of the cache."""
    path = write_catalogue(tmp_path, write_wheel(tmp_path), **changes)
    with pytest.raises(ModelFileError) as caught:
        load_catalogue(path)
    assert str(path) in str(caught.value)
    assert place in caught.value.where


@pytest.mark.parametrize("changes", [{"revision": "main"}, {"revision": None}, {"file": "."}, {"member": "x"}])
def test_mistakes_of_hub_entries(tmp_path, changes):
    """Guards against an entry that is not pinned: a branch moves."""
    with pytest.raises(ModelFileError, match=rf"\[other\] {next(iter(changes))}: "):
        load_catalogue(write_table(tmp_path / "hub.toml", other=HUB | {"default": True} | changes))


@pytest.mark.parametrize("name", ["Upper", "a/b", "..", "-x", "a b", ""])
def test_names_are_safe_directories(tmp_path, name):
    """Guards the cache against names that leave it (W9)."""
    with pytest.raises(ModelFileError, match="lower-case"):
        load_catalogue(write_table(tmp_path / "x.toml", **{name: HUB}))


def test_broken_files(tmp_path):
    """Guards against tracebacks: no file, no TOML, no table, no text, two defaults."""
    cases = {"toml": b"[a", "table": b"a = 1", "text": b"\xff", "empty": b""}
    for name, content in cases.items():
        path = Path(tmp_path / name)
        path.write_bytes(content)
        with pytest.raises(ModelFileError):
            load_catalogue(path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_catalogue(tmp_path / "missing")
    both = HUB | {"default": True}
    with pytest.raises(ModelFileError, match="found a, b"):
        load_catalogue(write_table(tmp_path / "two.toml", a=both, b=both))
