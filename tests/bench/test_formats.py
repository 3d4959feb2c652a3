"""Formats: whatever is printed can be read back."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from nybble.bench import formats
from nybble.bench.cases import Case
from nybble.bench.row import Row
from nybble.errors import InvalidParameter
from tests.bench.made_up import row

ROWS = [
    row(Case(512, 0), [900.0, 1000.0, 950.0]),
    row(Case(0, 128, 4096, 8), [50.0, 60.0], busy=(True, False), model='a "model", with | and\nlines'),
    row(Case(512, 0), [100.0, 101.0], engine="llama-cpp", revision=None),
]


def test_json() -> None:
    found = json.loads(formats.to_json(ROWS))
    assert found == json.loads(json.dumps([asdict(one) for one in ROWS]))
    wanted = {"test", "threads", "tokens_per_second", "samples", "ceiling_tokens_per_second", "share"}
    wanted |= {"bits_per_weight", "bytes_per_token", "depth", "batch", "cpu", "isa", "revision", "model_bytes"}
    assert wanted <= set(found[0])


def test_json_lines() -> None:
    lines = formats.to_json_lines(ROWS).split("\n")
    assert [json.loads(line) for line in lines] == json.loads(formats.to_json(ROWS))


def test_csv() -> None:
    """Guards against cells that break out of their column."""
    found = list(csv.DictReader(io.StringIO(formats.to_csv(ROWS))))
    assert len(found) == len(ROWS)
    for cells, one in zip(found, ROWS, strict=True):
        assert list(cells) == [field.name for field in fields(Row)]
        assert cells["model"] == one.model
        assert float(cells["tokens_per_second"]) == one.tokens_per_second
        assert tuple(map(float, cells["samples"].split(";"))) == one.samples
    assert found[2]["share"] == found[2]["revision"] == ""


def test_markdown() -> None:
    """Guards against bars in a cell that make a column more."""
    titles, cells = formats.table(ROWS)
    lines = formats.to_markdown(titles, cells).split("\n")
    assert lines[0].startswith("| ENGINE | MODEL | TEST | THREADS |")
    assert lines[1].startswith("|---|---|---|--:|")
    unescaped = [line.replace("\\|", "") for line in lines]
    assert {line.count("|") for line in unescaped} == {len(titles) + 1}
    assert len(lines) == len(ROWS) + 2


def test_columns_that_say_nothing() -> None:
    titles, _ = formats.table([row(Case(512, 0), [900.0, 1000.0])])
    assert titles == ["TEST", "THREADS>", "TOK/S>", "MIN-MAX>", "RATE>", "CEILING>", "OF>", "SHARE>"]
    titles, cells = formats.table(ROWS)
    assert {"ENGINE", "MODEL", "DEPTH>", "BATCH>", "WITH KV>", "BUSY>"} <= set(titles)
    assert cells[1][titles.index("BUSY>")] == "1/2"
    assert cells[2][titles.index("SHARE>")] == "-"
    assert formats.table([])[1] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.1234, "0.12"), (12.34, "12.3"), (99.96, "100.0"), (123.4, "123"), (4567.8, "4568")],
)
def test_rates(value: float | None, text: str) -> None:
    assert formats.rate(value) == text


def test_saved_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(formats.to_json(ROWS))
    assert formats.read_rows(path) == ROWS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "[{}]",
        '[{"test": 1}]',
        "[null]",
        json.dumps([{**asdict(ROWS[0]), "samples": []}]),
        json.dumps([{**asdict(ROWS[0]), "samples": 1}]),
        json.dumps([{**asdict(ROWS[0]), "surprise": 1}]),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(InvalidParameter, match=r"rows\.json"):
        formats.read_rows(path)


def test_unknown_format() -> None:
    with pytest.raises(InvalidParameter, match="table, md, csv, json, jsonl"):
        formats.check_format("xml")
