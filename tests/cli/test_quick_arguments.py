"""The quick reader of ``nybble run``'s arguments against the library that declares them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

from nybble.cli.app import app
from nybble.cli.quick_arguments import SWITCHES, VALUES, quick_arguments

RUN = get_command(app).commands["run"]  # type: ignore[attr-defined]
TEXTS = st.sampled_from(["", "-", "7", "-7", "1e3", "0.5", " 8", "1_0", "٣", "inf", "x", "--raw", "int8", "a b", "²"])
OPTIONS = st.sampled_from([*VALUES, *SWITCHES, "--stop", "--help", "--", "--mod", "-n7", "--seed=3"])


@settings(deadline=None)
@given(st.lists(st.one_of(OPTIONS, TEXTS), max_size=8))
def test_what_it_reads_the_library_reads(arguments: list[str]) -> None:
    """Guards against a second opinion on what the user said."""
    quick = quick_arguments(arguments)
    if quick is None:
        return
    parameters = RUN.make_context("run", list(arguments)).params
    given_values = {name: value for name, value in parameters.items() if value not in (None, False, [], ())}
    defaults = {"accuracy": "int8", "kv": "fp16"}
    plain = {name: list(value) if name == "stop" else value for name, value in given_values.items()}
    kept = {name: value for name, value in quick.items() if value not in (None, False)}
    assert {**defaults, **plain} == {**defaults, **kept}


@pytest.mark.parametrize(
    "arguments", [["-h"], ["--help", "x"], ["a", "b"], ["-n"], ["-n", "x"], ["--", "x"], ["--temp", "1"], ["-n5", "x"]]
)
def test_the_unusual_is_left_to_the_library(arguments: list[str]) -> None:
    assert quick_arguments(arguments) is None


def test_every_option_is_known() -> None:
    """Guards against an option that is declared and makes the start slow because it was forgotten here."""
    declared = {spelling for parameter in RUN.params for spelling in parameter.opts if spelling.startswith("-")}
    assert {*VALUES, *SWITCHES, "--stop"} == declared - {"--help", "-h"}


def test_an_answer_imports_nothing_slow(model: Path) -> None:
    """Guards against a library that sneaks into the start of an answer."""
    slow = ("typer", "click", "rich", "pydantic", "jinja2", "huggingface_hub", "asyncio")
    code = (
        "import sys; from nybble.cli.main import main; "
        f"code = main(['run', '--raw', '-n', '2', '-m', {str(model)!r}, 'Hello']); "
        f"print(code, [name for name in {slow} if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "0 []"
