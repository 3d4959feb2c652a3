"""``nybble chat``: scripted through a pipe, and by hand at a terminal."""

from __future__ import annotations

import itertools
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from nybble.engine.chat import Chat, Reply
from nybble.engine.loading import load
from tests.cli.outcome import Nybble, start
from tests.cli.talkers import talker
from tests.cli.terminal import Terminal

TURN = re.compile(r"reused (\d+) of (\d+) prompt tokens, computed (\d+), generated (\d+)")
PATIENCE_SECONDS = 30.0


def turns(remarks: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, found)) for found in TURN.findall(remarks)]


def test_conversation(nybble: Nybble, model: Path, tmp_path: Path) -> None:
    """Guards against a history that is forgotten, computed again, or not what is saved."""
    path = tmp_path / "our talk.json"
    script = f"hello\n\n how are you\n/save {path}\n"
    outcome = nybble("chat", "-m", model, "-n", 8, "--system", "Be kind.", stdin=script)
    assert outcome.code == 0
    first, second = outcome.output.splitlines()
    messages = json.loads(path.read_text())
    assert messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": " how are you"},
        {"role": "assistant", "content": second},
    ]
    loaded = load(model)
    prompts = [len(loaded.conversation(messages[:2])), len(loaded.conversation(messages[:4]))]
    (reused, prompt, computed, generated), later = turns(outcome.remarks)
    assert (reused, prompt, computed, generated) == (0, prompts[0], prompts[0], 8)
    assert later[1] == prompts[1]
    assert later[0] >= prompts[0]
    assert later[0] + later[2] == later[1]


def test_answers_alone_are_on_standard_output(nybble: Nybble, model: Path) -> None:
    """Guards against prompts, remarks and colours in a pipe."""
    outcome = nybble("chat", "-m", model, "-n", 5, stdin="a\n/help\n/reset\nb")
    assert re.fullmatch(r"[a-z]{5}\n[a-z]{5}\n", outcome.output)
    for command in ("/reset", "/save PATH", "/exit", "/help"):
        assert command in outcome.remarks
    assert "\x1b" not in outcome.remarks


def test_reset_forgets(nybble: Nybble, model: Path) -> None:
    """Guards against a conversation that goes on after /reset, and a system message that does not."""
    outcome = nybble("chat", "-m", model, "-n", 5, "--system", "Be kind.", stdin="a\n/reset\na\n")
    first, second = outcome.output.splitlines()
    (_, prompt, _, _), (_, prompt_again, _, _) = turns(outcome.remarks)
    assert (first, prompt) == (second, prompt_again)


def test_exit_leaves(nybble: Nybble, model: Path) -> None:
    outcome = nybble("chat", "-m", model, stdin="/exit\nmore\n")
    assert (outcome.code, outcome.output) == (0, "")


def test_failures_are_told_and_the_chat_goes_on(nybble: Nybble, model: Path, tmp_path: Path) -> None:
    """Guards against one bad line ending a conversation, and scripts that do not learn of it."""
    script = f"{'a' * 300}\n/sing\n/save\n/save {tmp_path}/none/talk.json\nhello\n"
    outcome = nybble("chat", "-m", model, "-n", 5, stdin=script)
    assert outcome.code == 1
    assert re.fullmatch(r"[a-z]{5}\n", outcome.output)
    overflow, unknown, pathless, unwritable, answered = outcome.remarks.splitlines()
    assert "256" in overflow and "/reset" in overflow
    assert "/sing" in unknown and "/help" in unknown
    assert "/save" in pathless
    assert f"{tmp_path}/none/talk.json: No such file" in unwritable
    assert turns(answered)


def test_line_that_is_not_text(nybble: Nybble, model: Path) -> None:
    """Guards against bytes that end a conversation with a traceback."""
    outcome = nybble("chat", "-m", model, "-n", 5, stdin=b"gr\xfc\xdfe\nhello\n")
    assert outcome.code == 1
    assert "not valid Unicode" in outcome.remarks
    assert re.fullmatch(r"[a-z]{5}\n", outcome.output)


def test_full_context_is_told(nybble: Nybble, model: Path) -> None:
    """Guards against an answer that ends in the middle without a reason."""
    outcome = nybble("chat", "-m", model, stdin="hello\n")
    assert "the context of 256 tokens is full" in outcome.remarks


def test_model_without_template(nybble: Nybble, tmp_path: Path) -> None:
    path = talker(tmp_path / "plain.gguf", extra={"tokenizer.chat_template": None})
    outcome = nybble("chat", "-m", path, stdin="hello\n")
    assert outcome.code == 1
    assert "no chat template" in outcome.error


def test_interrupt_keeps_a_piped_chat(endless: Path) -> None:
    """Guards against Ctrl-C ending more than the answer."""
    with start("chat", "-m", endless, "-n", 10**6, "--context", 10**6) as chat:
        assert chat.stdin is not None and chat.stdout is not None
        chat.stdin.write(b"hello\n")
        chat.stdin.flush()
        assert chat.stdout.read(1).isalpha()
        chat.send_signal(signal.SIGINT)
        _, remarks = chat.communicate(b"/help\n", timeout=PATIENCE_SECONDS)
    assert chat.returncode == 0
    assert b"interrupted" in remarks and b"/reset" in remarks
    assert b"Traceback" not in remarks


def test_interrupt_before_the_answer(nybble: Nybble, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a chat that ends because Ctrl-C came while the prompt was being prepared."""
    send, calls = Chat.send, itertools.count()

    def interrupted_once(*arguments: Any, **parameters: Any) -> Reply:
        if next(calls) == 0:
            raise KeyboardInterrupt
        return send(*arguments, **parameters)

    monkeypatch.setattr(Chat, "send", interrupted_once)
    outcome = nybble("chat", "-m", model, "-n", 5, stdin="one\ntwo\n")
    assert outcome.code == 0
    assert "interrupted before" in outcome.remarks
    assert re.fullmatch(r"[a-z]{5}\n", outcome.output)


def test_terminal(endless: Path) -> None:
    """Guards against Ctrl-C leaving the chat while it answers, and against Ctrl-D not leaving it."""
    terminal = Terminal("chat", "-m", endless, "-n", 10**6, "--context", 10**6)
    terminal.wait_for("/help lists the commands")
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for_match("hello\r?\n[^a-z]*[a-z]")
    terminal.type("\x03")
    terminal.wait_for("interrupted")
    terminal.wait_for("> ")
    terminal.type("/reset\n")
    terminal.wait_for("\x1b[2mthe conversation is empty\x1b[0m")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_interrupt_at_the_prompt_leaves(model: Path) -> None:
    terminal = Terminal("chat", "-m", model)
    terminal.wait_for("> ")
    terminal.type("half a thou")
    terminal.wait_for("half a thou")
    time.sleep(0.3)  # Python's line editor notices a signal only once it waits for the next key
    terminal.type("\x03")
    assert terminal.end() == 0
