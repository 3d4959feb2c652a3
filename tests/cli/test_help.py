"""Help pages: there, true, quick."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from nybble import __version__
from nybble.cli import app as application
from nybble.cli import bench, cache, chat, convert, explain, inspect, models, patch, probe, run
from nybble.cli.answering import answer_parameters
from nybble.engine.llm import DEFAULT_MAX_TOKENS
from nybble.engine.loading import LONGEST_DEFAULT_CONTEXT
from nybble.graph.dispatch import Accuracy
from tests.cli.outcome import Nybble

EXAMPLES = {
    (): application.EXAMPLES,
    ("run",): run.EXAMPLES,
    ("chat",): chat.EXAMPLES,
    ("models",): models.EXAMPLES,
    ("models", "fetch"): models.FETCH_EXAMPLES,
    ("models", "remove"): models.REMOVE_EXAMPLES,
    ("cache",): cache.EXAMPLES,
    ("cache", "ls"): cache.LIST_EXAMPLES,
    ("cache", "rm"): cache.REMOVE_EXAMPLES,
    ("explain",): explain.EXAMPLES,
    ("inspect",): inspect.EXAMPLES,
    ("patch",): patch.EXAMPLES,
    ("convert",): convert.EXAMPLES,
    ("probe",): probe.EXAMPLES,
    ("bench",): bench.EXAMPLES,
}
HEAVY = ("numpy", "tokenizers", "jinja2", "huggingface_hub", "nybble._native")


def all_commands(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found = {path: command}
    for name, inner in getattr(command, "commands", {}).items():
        found |= all_commands(inner, (*path, name))
    return found


@pytest.mark.parametrize("path", all_commands(get_command(application.app)))
def test_help_has_examples(nybble: Nybble, path: tuple[str, ...]) -> None:
    """Guards against commands without help or without an example in it."""
    outcome = nybble(*path, "--help")
    assert outcome.code == 0
    assert EXAMPLES[path]
    for example in EXAMPLES[path]:
        assert f"\n    {example}\n" in outcome.output
    assert outcome == nybble(*path, "-h")


@pytest.mark.parametrize("example", [example for examples in EXAMPLES.values() for example in examples])
def test_examples_are_accepted(example: str) -> None:
    """Guards against examples that name options or commands which are no more."""
    words = shlex.split(example)
    arguments = words[words.index("nybble") + 1 :]
    if "<" in arguments:
        arguments = arguments[: arguments.index("<")]
    root = get_command(application.app)
    called = []
    for path, command in all_commands(root).items():
        command.callback = lambda path=path, **values: called.append(path)
    root.main(args=arguments, prog_name="nybble", standalone_mode=False)
    assert called[-1] == tuple(arguments[: len(called[-1])]) != ()


def test_defaults_in_help_are_true(nybble: Nybble) -> None:
    """Guards against help that tells defaults the engine no longer has."""
    text = " ".join(nybble("run", "--help").output.split())
    assert f"If missing: {DEFAULT_MAX_TOKENS}." in text
    assert f"at most {LONGEST_DEFAULT_CONTEXT}." in text
    assert f"--accuracy {'|'.join(accuracy.value for accuracy in Accuracy)} " in text
    assert answer_parameters(None, None) == {"max_tokens": DEFAULT_MAX_TOKENS, "stop": ()}


@pytest.mark.parametrize("code", ["import nybble", "from nybble.cli.main import main; main(['--help'])"])
def test_nothing_heavy_is_imported(code: str) -> None:
    """Guards against a slow ``import nybble`` and a slow help page."""
    check = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[]"


def test_no_command_shows_help(nybble: Nybble) -> None:
    outcome = nybble()
    assert outcome.code in (0, 2)  # versions of typer differ
    assert "Usage: nybble" in outcome.output + outcome.remarks


def test_version(nybble: Nybble) -> None:
    outcome = nybble("--version")
    assert (outcome.code, outcome.output) == (0, f"nybble {__version__}\n")
