"""``nybble bench``: what it prints, refuses, saves and compares; what it measures is tested in tests/bench."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from tests.bench.workers import FAKE_LLAMA_CPP, python_with
from tests.cli.outcome import Nybble
from tests.cli.terminal import Terminal

QUICK = ("-p", "4", "-n", "3", "-t", "1", "-r", "2", "--processes", "1")


def test_rows(nybble: Nybble, model: Path) -> None:
    outcome = nybble("bench", model, *QUICK, "-t", "1,2", "-d", "0,5", "-b", "1,2", "-pg", "4+2", "-o", "json")
    assert outcome.code == 0
    rows = json.loads(outcome.output)
    tests = [(row["test"], row["threads"], row["depth"], row["batch"]) for row in rows]
    of_depth = [("pp4", 1), ("tg3", 1), ("tg3", 2), ("pg4+2", 1)]
    assert tests == [
        (test, threads, depth, batch) for threads in (1, 2) for depth in (0, 5) for test, batch in of_depth
    ]
    for row in rows:
        assert row["engine"] == "nybble" and row["model"] == "talker"
        assert len(row["samples"]) == len(row["busy"]) == 2
        assert row["minimum"] <= row["tokens_per_second"] <= row["maximum"]
        assert row["share"] == pytest.approx(row["tokens_per_second"] / row["ceiling_tokens_per_second"])
        assert row["bits_per_weight"] > 0 and row["bytes_per_token"] > 0


def test_table(nybble: Nybble, model: Path) -> None:
    lines = nybble("bench", model, *QUICK).output.splitlines()
    titles = [title for title in lines[0].split() if title != "BUSY"]  # who knows what else runs here
    assert titles == ["TEST", "THREADS", "TOK/S", "MIN-MAX", "RATE", "CEILING", "OF", "SHARE"]
    assert [line.split()[0] for line in lines[1:3]] == ["pp4", "tg3"]
    assert re.match(r"talker; llama F32, 3\d\.\d\d bits per weight packed; nybble ", lines[-1])
    assert lines[-1].endswith("medians of 2 samples from 1 process")


def test_formats(nybble: Nybble, model: Path) -> None:
    assert nybble("bench", model, *QUICK, "--format", "md").output.startswith("| TEST | THREADS |")
    rows = [json.loads(line) for line in nybble("bench", model, *QUICK, "--format", "jsonl").output.splitlines()]
    assert [row["test"] for row in rows] == ["pp4", "tg3"]
    table = csv.DictReader(io.StringIO(nybble("bench", model, *QUICK, "--format", "csv").output))
    assert [row["test"] for row in table] == ["pp4", "tg3"]


def test_save_and_compare(nybble: Nybble, model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "old.json"
    assert nybble("bench", model, *QUICK, "--save", saved).code == 0
    rows = json.loads(saved.read_text())
    # So much faster than now that no noise of this machine hides it.
    rows[0]["tokens_per_second"] *= 1e6
    rows[0]["samples"] = [rows[0]["tokens_per_second"]] * len(rows[0]["samples"])
    saved.write_text(json.dumps(rows[:1]))
    outcome = nybble("bench", model, *QUICK, "--compare", saved)
    heading, line = outcome.output.splitlines()[-2:]
    assert heading.split() == ["ENGINE", "TEST", "THREADS", "DEPTH", "BATCH", "OLD", "NEW", "CHANGE", "VERDICT"]
    assert line.split()[:2] == ["nybble", "pp4"] and line.endswith("slower")
    assert "1 of 2 rows have nothing to be compared with" in outcome.remarks
    outcome = nybble("bench", model, *QUICK, "--compare", saved, "--format", "json")
    assert len(json.loads(outcome.output)) == 2
    assert "verdict slower" in outcome.remarks


def test_against(nybble: Nybble, model: Path, tmp_path: Path) -> None:
    """Guards against other engines that are left out in silence, or compared with another test."""
    python = python_with(tmp_path / "peer", llama_cpp=FAKE_LLAMA_CPP)
    peers = ("--against", "llama-cpp,mnn", "--peer-python", f"llama-cpp={python}")
    outcome = nybble("bench", model, *QUICK, *peers)
    assert outcome.code == 0
    lines = outcome.output.splitlines()
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["nybble", "pp4"],
        ["llama-cpp", "pp4"],
        ["nybble", "tg3"],
        ["llama-cpp", "tg3"],
    ]
    assert lines[-3].split() == ["TEST", "THREADS", "DEPTH", "BATCH", "NYBBLE", "ENGINE", "TOK/S", "RATIO"]
    assert [line.split()[0] for line in lines[-2:]] == ["pp4", "tg3"]
    assert outcome.remarks.startswith("mnn needs a model of its own: --peer-model mnn=PATH")


def test_a_shape_against(nybble: Nybble, tmp_path: Path) -> None:
    """Other engines read a file of the same shape, and what is not the same about it is said."""
    python = python_with(tmp_path / "peer", llama_cpp=FAKE_LLAMA_CPP)
    shape = ("--shape", "smollm2-135m", "--block", "64", "-p", "0", "-n", "1", "-t", "1", "-r", "1", "--processes", "1")
    outcome = nybble("bench", *shape, "--against", "llama-cpp", "--peer-python", f"llama-cpp={python}", "-o", "json")
    rows = json.loads(outcome.output)
    assert [(row["engine"], row["model"]) for row in rows] == [
        ("nybble", "smollm2-135m W4B64"),
        ("llama-cpp", "smollm2-135m Q4_0"),
    ]
    assert "other engines are measured with Q4_0 weights" in outcome.remarks


def test_nobody_to_compare_with(nybble: Nybble, model: Path, tmp_path: Path) -> None:
    python = python_with(tmp_path / "peer")
    outcome = nybble("bench", model, *QUICK, "--against", "llama-cpp", "--peer-python", f"llama-cpp={python}")
    assert outcome.code == 1 and outcome.output == ""
    assert "pip install llama-cpp-python" in outcome.remarks
    assert "none of the engines of --against can be measured" in outcome.remarks


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("-p", "x"), "--prompt"),
        (("-n", "-1"), "--generate"),
        (("-p", "0", "-n", "0"), "-pg"),
        (("-pg", "5"), "-pg"),
        (("-t", "0"), "--threads"),
        (("-d", "1.5"), "--depth"),
        (("-b", "0"), "--batch"),
        (("--format", "xml"), "--format"),
        (("--accuracy", "f8"), "accuracy"),
        (("--plot", "out.pdf"), "--plot"),
        (("--against", "llama"), "llama-cpp"),
        (("--peer-python", "llama-cpp=x"), "--peer-python"),
        (("--against", "mnn", "--peer-model", "mnn=missing"), "--peer-model"),
        (("--op", "matmul"), "linear"),
        (("--op", "linear"), "without a model"),
        (("--shape", "gpt-9"), "qwen2.5-0.5b"),
        (("--shape", "smollm2-135m", "--bits", "5"), "2, 4 and 8 bits"),
        (("--shape", "smollm2-135m", "--block", "48"), "blocks of 16"),
        (("--shape", "smollm2-135m", "--bits", "16", "--block", "64"), "--block"),
        (("--shape", "smollm2-135m", "--bits", "16", "--asym"), "--asym"),
        (("--shape", "smollm2-135m", "-M", "4"), "--rows"),
        (("--bits", "8"), "--bits"),
        (("-K", "64"), "--features"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(
    nybble: Nybble, model: Path, arguments: tuple[str, ...], named: str
) -> None:
    """Guards against mistakes that are told after minutes of measuring, or not as usage."""
    of_model = () if "--shape" in arguments else (model,)
    outcome = nybble("bench", *of_model, *arguments)
    assert outcome.code == 2
    assert named in outcome.error


def test_an_op(nybble: Nybble, monkeypatch: pytest.MonkeyPatch) -> None:
    op = ("--op", "linear", "-M", "1,4", "-K", "64", "-N", "96", "--bits", "8", "--asym", "-r", "2", "--processes", "1")
    monkeypatch.setenv("NYBBLE_ISA", "portable")
    outcome = nybble("bench", *op, "-t", "1")
    assert outcome.code == 0
    lines = outcome.output.splitlines()
    assert lines[0].split()[:4] == ["KERNEL", "M", "THREADS", "TIME"]
    assert [line.split()[:3] for line in lines[1:-2]] == [
        [f"linear_w8_{activations}_{layout}_portable", rows, "1"]
        for rows in ("1", "4")
        for layout in ("panel32", "panel32k8")
        for activations in ("int8", "f32")
    ]
    assert lines[-1].startswith("linear 64x96 W8B32A; ")
    rows = json.loads(nybble("bench", *op, "-t", "1", "-o", "json").output)
    assert [row["test"] for row in rows] == ["M=1"] * 4 + ["M=4"] * 4
    assert all(row["share"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("-M", "0"), "--rows"),
        (("--bits", "3"), "2, 4 and 8 bits"),
        (("--shape", "smollm2-135m"), "--shape"),
        (("-n", "1"), "--generate"),
    ],
)
def test_mistakes_about_an_op(nybble: Nybble, arguments: tuple[str, ...], named: str) -> None:
    outcome = nybble("bench", "--op", "linear", *arguments)
    assert outcome.code == 2 and named in outcome.error


def test_a_model_and_a_shape(nybble: Nybble, model: Path) -> None:
    outcome = nybble("bench", model, "--shape", "smollm2-135m")
    assert outcome.code == 2 and "measure one of them" in outcome.error


@pytest.mark.parametrize("content", [None, "[1]"])
def test_nothing_to_compare_with(nybble: Nybble, model: Path, tmp_path: Path, content: str | None) -> None:
    old = tmp_path / "old.json"
    if content is not None:
        old.write_text(content)
    outcome = nybble("bench", model, *QUICK, "--compare", old)
    assert outcome.code == (1 if content is None else 2) and str(old) in outcome.error


def test_a_broken_model(nybble: Nybble, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    outcome = nybble("bench", path, *QUICK)
    assert outcome.code == 1 and outcome.error.startswith(str(path))


def test_at_a_terminal(model: Path) -> None:
    """Guards against a bar that stays, or one in the table."""
    terminal = Terminal("bench", model, *QUICK)
    terminal.wait_for("measuring")
    terminal.wait_for("SHARE")
    terminal.wait_for("tg3")
    assert terminal.end() == 0


def test_ctrl_c(model: Path) -> None:
    terminal = Terminal("bench", model, *QUICK, "-n", "200", "-r", "100000")
    terminal.wait_for_match(r"[1-9]\d*/\d+")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "Traceback" not in terminal.screen
