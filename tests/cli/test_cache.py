"""``nybble cache``: what it shows is there, what it removes is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nybble.engine import loading
from nybble.formats import file_identity
from tests.cli.outcome import Nybble


@pytest.fixture(autouse=True)
def everything_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SMALLEST_STORED_BYTES", 0)
    monkeypatch.setattr(file_identity, "SETTLED_SECONDS", -1)


def test_list_and_remove(nybble: Nybble, model: Path) -> None:
    assert json.loads(nybble("cache", "ls", "--json").output)["entries"] == []
    nybble("run", "-m", model, "-n", 2, "Hello")
    nybble("run", "-m", model, "-n", 2, "--accuracy", "f32", "Hello")
    (latest, first) = json.loads(nybble("cache", "ls", "--json").output)["entries"]
    assert (latest["model"], first["model"]) == (str(model), str(model))
    assert latest["options"].startswith("f32-") and first["options"].startswith("int8-")
    assert latest["bytes"] > 0
    listed = nybble("cache", "ls").output
    assert "talker.gguf" in listed and "2 models" in listed and "0 minutes ago" in listed
    assert nybble("cache", "rm", first["name"]).remarks.startswith("1 model removed")
    assert nybble("cache", "rm", "talker.gguf").code == 0
    assert json.loads(nybble("cache", "ls", "--json").output)["entries"] == []
    nybble("run", "-m", model, "-n", 2, "Hello")
    assert nybble("cache", "rm", "--all").remarks.startswith("1 model removed")
    assert "0 models, 0.0 MB" in nybble("cache", "ls").output


def test_mistakes(nybble: Nybble) -> None:
    outcome = nybble("cache", "rm", "nothing.gguf")
    assert (outcome.code, outcome.error) == (
        1,
        "the packed cache has nothing called nothing.gguf; see `nybble cache ls`",
    )
    for arguments in ((), ("x", "--all")):
        outcome = nybble("cache", "rm", *arguments)
        assert (outcome.code, outcome.error) == (2, "give either the NAME of what to remove or --all")
