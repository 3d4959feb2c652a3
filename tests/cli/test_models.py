"""``nybble models``: what is known, what is here."""

from __future__ import annotations

import json
import re
from pathlib import Path

from nybble.hub.cache import ModelCache
from nybble.hub.catalogue import CatalogueEntry, load_catalogue
from tests.cli.outcome import Nybble
from tests.cli.terminal import Terminal


def pretend(entry: CatalogueEntry) -> Path:
    """A file of the right name and size where the cache looks; its content does not matter here."""
    path = ModelCache().location(entry)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(entry.size)
    return path


def test_listing(nybble: Nybble) -> None:
    """Guards against models that are known but not shown, and against decorations in a pipe."""
    entries = load_catalogue().entries
    outcome = nybble("models")
    assert outcome.code == 0
    assert "\x1b" not in outcome.output
    titles, *rows = outcome.output.split("\n\n")[0].splitlines()
    assert titles.split() == ["NAME", "TITLE", "QUANT", "SIZE", "SOURCE", "HERE"]
    for entry, row in zip(entries.values(), rows, strict=True):
        assert row.split()[0] == entry.name
        assert entry.title in row and entry.quantisation in row and str(entry.source) in row
        assert row.split()[-1] == "no"
        assert f"{entry.size / 1e6:.0f} MB" in row


def test_json(nybble: Nybble) -> None:
    catalogue = load_catalogue()
    listed = json.loads(nybble("models", "--json").output)
    assert [model["name"] for model in listed] == list(catalogue.entries)
    assert [model["name"] for model in listed if model["default"]] == [catalogue.default.name]
    assert not any(model["present"] for model in listed)


def test_present_model(nybble: Nybble) -> None:
    """Guards against fetching again what is here, and against removing less or more than was asked."""
    entry = load_catalogue().default
    path = pretend(entry)
    assert nybble("models", "fetch", entry.name).output == f"{path}\n"
    outcome = nybble("models")
    assert outcome.output.split("\n\n")[0].splitlines()[1].endswith("yes")
    assert str(path) in outcome.output
    assert nybble("models", "remove", entry.name).code == 0
    assert not path.exists()


def test_nothing_to_remove(nybble: Nybble) -> None:
    """Guards against a success that removed nothing."""
    assert "nothing to remove" in nybble("models", "remove", load_catalogue().default.name).error
    outcome = nybble("models", "remove", "unknown")
    assert outcome.code == 1
    assert "unknown" in outcome.error


def test_table_at_a_terminal() -> None:
    """Guards against a table that does not fit its terminal, and colours for people who said no."""
    terminal = Terminal("models", COLUMNS="60")
    assert terminal.end() == 0
    assert "\x1b[1m" in terminal.screen
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.screen)
    assert max(map(len, plain.splitlines())) <= 60
    terminal = Terminal("models", TERM="dumb")
    assert terminal.end() == 0
    assert "\x1b" not in terminal.screen
