"""``nybble run``: answers, and every way of asking wrongly."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from nybble.engine.loading import load
from nybble.engine.session import Session
from tests.cli.outcome import Nybble
from tests.cli.talkers import talker

ABC = "a" * 300  # more tokens than the context of 256


def test_answer_and_timings(nybble: Nybble, model: Path) -> None:
    """Guards against text that differs from the library's, a missing last newline, and timings on the wrong stream."""
    outcome = nybble("run", "-m", model, "-n", 20, "-t", 1, "Hello")
    assert outcome.code == 0
    assert outcome.output == load(model, threads=1).generate("Hello", max_tokens=20).text + "\n"
    (line,) = outcome.remarks.splitlines()
    assert re.fullmatch(
        r"load \S+ s, first token \S+ s, prefill \S+ tok/s, decode \S+ tok/s, peak memory \S+ MB, 1 thread, \w+, "
        r"stopped at 20 tokens \(--max-tokens\)",
        line,
    )


def test_json(nybble: Nybble, model: Path) -> None:
    """Guards against JSON mixed with streamed text, and figures that contradict the answer."""
    outcome = nybble("run", "-m", model, "-n", 20, "--json", "Hello")
    expected = load(model).generate("Hello", max_tokens=20)
    facts = json.loads(outcome.output)
    assert (facts["text"], facts["ids"], facts["finish_reason"]) == (expected.text, list(expected.ids), "length")
    timings = facts["timings"]
    assert timings["prompt_tokens"] == expected.timings.prompt_tokens
    assert timings["generated_tokens"] == 20
    assert min(timings["load"], timings["first_token"], timings["prefill_rate"], timings["decode_rate"]) > 0
    assert facts["peak_memory"] > 1_000_000
    assert facts["model"]["path"] == str(model)
    assert facts["model"]["memory"]["total"] > facts["model"]["memory"]["weights"] > 0
    assert outcome.remarks == ""


def test_interrupted_json(nybble: Nybble, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against an interrupted answer that is lost because it was to be JSON."""
    decode, calls = Session.decode, itertools.count()

    def interrupted(session: Session, token: int) -> object:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return decode(session, token)

    complete = nybble("run", "-m", model, "-n", 20, "Hello").output
    monkeypatch.setattr(Session, "decode", interrupted)
    outcome = nybble("run", "-m", model, "-n", 20, "--json", "Hello")
    facts = json.loads(outcome.output)
    assert (outcome.code, facts["finish_reason"]) == (130, "cancelled")
    assert len(facts["text"]) == 6 and complete.startswith(facts["text"])


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_prompt_from_standard_input(nybble: Nybble, model: Path, arguments: tuple[str, ...]) -> None:
    """Guards against a pipe that is not read, and the shell's newline becoming part of the prompt."""
    piped = nybble("run", "-m", model, "-n", 9, *arguments, stdin="Grüße\n")
    given = nybble("run", "-m", model, "-n", 9, "Grüße", stdin="ignored")
    assert piped.code == 0
    assert piped.output == given.output


def test_raw_and_system_change_the_prompt(nybble: Nybble, model: Path) -> None:
    """Guards against options that are read but not passed on."""

    def prompt_tokens(*arguments: str) -> int:
        return json.loads(nybble("run", "-m", model, "-n", 1, "--json", *arguments).output)["timings"]["prompt_tokens"]

    loaded = load(model)
    assert prompt_tokens("--raw", "abc") == len(loaded.tokenize("abc"))
    user = {"role": "user", "content": "abc"}
    assert prompt_tokens("abc") == len(loaded.conversation([user]))
    system = {"role": "system", "content": "Be brief."}
    assert prompt_tokens("--system", "Be brief.", "abc") == len(loaded.conversation([system, user]))


def test_stop(nybble: Nybble, model: Path) -> None:
    """Guards against a stop text that is ignored or shown."""
    text = nybble("run", "-m", model, "-n", 30, "Hello").output
    outcome = nybble("run", "-m", model, "-n", 30, "--stop", "@", "--stop", text[5:8], "Hello")
    assert outcome.output == text[: text.index(text[5:8])] + "\n"


def test_same_seed_same_answer(nybble: Nybble, model: Path) -> None:
    """Guards against sampling options that do not arrive."""
    sampling = ("--temperature", 3, "--top-k", 20, "--top-p", 0.9, "--min-p", 0.01, "--repetition-penalty", 1.1)
    answers = [nybble("run", "-m", model, "-n", 40, *sampling, "--seed", seed, "Hi").output for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_verbose_names_origins(nybble: Nybble, tmp_path: Path) -> None:
    """Guards against sampling values nobody can trace: the model's, the user's and ours each say so."""
    path = talker(tmp_path / "warm.gguf", extra={"general.sampling.temp": 0.5, "general.sampling.top_k": 7})
    remarks = nybble("run", "-m", path, "-n", 2, "-v", "--top-k", 5, "--context", 200, "Hi").remarks.splitlines()
    assert "temperature: 0.5 (general.sampling.temp)" in remarks
    assert "top_k: 5 (--top-k)" in remarks
    assert "min_p: 0 (nybble's default)" in remarks
    assert "context: 200 tokens, kept as fp16" in remarks
    assert any(line.startswith("memory: ") and "KV cache" in line for line in remarks)
    assert f"model: {path} (llama)" in remarks


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--top-p", "3"), "top_p"),
        (("--temperature", "-1"), "temperature"),
        (("--temperature", "nan"), "temperature"),
        (("--max-tokens", "0"), "max_tokens"),
        (("--stop", ""), "stop"),
        (("--threads", "0"), "threads"),
        (("--accuracy", "f8"), "f8"),
    ],
)
def test_bad_values_are_usage_errors(nybble: Nybble, arguments: tuple[str, ...], named: str) -> None:
    """Guards against telling of a mistake only after a model was looked for, fetched or loaded."""
    outcome = nybble("run", "-m", "no such model", *arguments, "Hi")
    assert outcome.code == 2
    assert named in outcome.error


@pytest.mark.parametrize("arguments", [("--temperature", "warm"), ("--no-such-option",), ("one", "two"), ("-n", "1.5")])
def test_bad_options_are_usage_errors(nybble: Nybble, arguments: tuple[str, ...]) -> None:
    """Guards against exit codes that confuse wrong usage with failure."""
    outcome = nybble("run", *arguments)
    assert outcome.code == 2
    assert outcome.output == ""
    assert "Usage: nybble run" in outcome.remarks


def test_bad_context_is_a_usage_error(nybble: Nybble, model: Path) -> None:
    outcome = nybble("run", "-m", model, "--context", 257, "Hi")
    assert outcome.code == 2
    assert "257" in outcome.error and "256" in outcome.error


@pytest.mark.parametrize("stdin", [b"", b"\n"])
def test_empty_prompt_is_a_usage_error(nybble: Nybble, stdin: bytes) -> None:
    """Guards against answering nothing, as when a pipeline's first command failed."""
    outcome = nybble("run", stdin=stdin)
    assert outcome.code == 2
    assert outcome.error == "the prompt is empty"


def test_prompt_that_is_not_text(nybble: Nybble) -> None:
    outcome = nybble("run", stdin=b"abc\xff")
    assert outcome.code == 2
    assert "not UTF-8" in outcome.error and "byte 3" in outcome.error


def test_no_such_model(nybble: Nybble) -> None:
    """Guards against an error that does not say where was looked."""
    outcome = nybble("run", "-m", "missing.gguf", "Hi")
    assert outcome.code == 1
    assert "missing.gguf" in outcome.error and "smollm2-135m" in outcome.error


def test_offline_without_a_model(nybble: Nybble) -> None:
    outcome = nybble("run", "--offline", "Hi")
    assert outcome.code == 1
    assert "offline" in outcome.error


def test_not_a_model(nybble: Nybble, tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("dear diary")
    outcome = nybble("run", "-m", path, "Hi")
    assert outcome.code == 1
    assert str(path) in outcome.error


def test_prompt_longer_than_the_context(nybble: Nybble, model: Path) -> None:
    outcome = nybble("run", "-m", model, "--raw", ABC)
    assert outcome.code == 1
    assert "300 tokens" in outcome.error and "256" in outcome.error


def test_unavailable_instruction_set(nybble: Nybble, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a silent fall back, and against a refusal that does not say what there is."""
    monkeypatch.setenv("NYBBLE_ISA", "mmx")
    outcome = nybble("run", "-m", model, "Hi")
    assert outcome.code == 1
    assert "mmx" in outcome.error and "portable" in outcome.error


def test_broken_template_still_continues_text(nybble: Nybble, tmp_path: Path) -> None:
    """Guards against the advice --raw of that error being wrong."""
    path = talker(tmp_path / "broken.gguf", extra={"tokenizer.chat_template": "{% for"})
    outcome = nybble("run", "-m", path, "-n", 3, "Hi")
    assert outcome.code == 1
    assert "--raw" in outcome.error
    assert nybble("run", "-m", path, "-n", 3, "--raw", "Hi").code == 0


def test_system_message_needs_a_template(nybble: Nybble, tmp_path: Path, model: Path) -> None:
    """Guards against a system message that is dropped in silence."""
    path = talker(tmp_path / "plain.gguf", extra={"tokenizer.chat_template": None})
    assert nybble("run", "-m", path, "-n", 3, "Hi").code == 0
    assert "template" in nybble("run", "-m", path, "--system", "Be kind.", "Hi").error
    both = nybble("run", "-m", model, "--raw", "--system", "Be kind.", "Hi")
    assert both.code == 2
