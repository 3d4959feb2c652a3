"""Guards against: Ctrl-C that loses more than the rest of an answer, wherever it strikes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import nybble
from nybble.engine import chat, generation, llm, session
from tests.cli.talkers import talker

from .interrupts import lines_run, raising_at_line
from .small_models import greedy, small_gguf

FILES = [Path(str(module.__file__)) for module in (chat, generation, llm, session)]
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nybble.LLM:
    model = nybble.load(small_gguf(tmp_path_factory.mktemp("models") / "model.gguf", storage="Q8_0"), threads=1)
    # Raising on leaving the lock's block, where no signal is ever handled, would leave it locked.
    model._runner = replace(model._runner, lock=threading.RLock())
    return model


def test_at_any_line_of_a_turn(model: nybble.LLM) -> None:
    """The chat holds the turns before and perhaps the beginning of this one, and answers the next as if cold."""

    def first_turn() -> nybble.Chat:
        conversation = model.chat("Be kind.")
        list(conversation.send("a", max_tokens=3))
        return conversation

    def turn(conversation: nybble.Chat) -> None:
        for _ in conversation.send("b", max_tokens=5, stop=["never"]):
            pass

    reached = set()
    whole = first_turn()
    for line in range(lines_run(lambda: turn(whole), FILES)):
        conversation = first_turn()
        before = conversation.messages
        with raising_at_line(line, FILES):
            turn(conversation)
        after = conversation.messages
        reached.add(len(after))
        if after != before:
            assert after[:-1] == whole.messages[:-1]
            assert after[-1]["role"] == "assistant"
            assert whole.messages[-1]["content"].startswith(after[-1]["content"])
        ids = model.conversation([*after, {"role": "user", "content": "c"}])
        reply = conversation.send("c", max_tokens=3)
        list(reply)
        assert reply.stream.ids == greedy(model, ids, 3), f"line {line}"
    assert reached == {len(before), len(whole.messages)}


def test_at_any_line_of_an_answer(model: nybble.LLM) -> None:
    """What the model lent to the answer is not lent again in a bad state, nor to two at once."""
    expected = greedy(model, model.tokenize("abc"), 5)

    def answer() -> None:
        for _ in model.stream("xyz", raw=True, max_tokens=5):
            pass
        model.logits([1, 2, 3])

    answer()
    for line in range(lines_run(answer, FILES)):
        with raising_at_line(line, FILES):
            answer()
        stream = model.stream("abc", raw=True, max_tokens=5)
        next(stream)
        assert list(model.generate("abc", raw=True, max_tokens=5).ids) == expected, f"line {line}"
        stream.finish()
        assert stream.ids == expected, f"line {line}"


@pytest.mark.parametrize("during", ["prompt", "answer"])
def test_a_real_signal(tmp_path: Path, during: str) -> None:
    """Ctrl-C while native code runs: in the middle of a prompt that takes seconds, or of an endless answer."""
    path = talker(tmp_path / "endless.gguf", context_length=1 << 20)
    script = f"""
        import os, signal, threading, time
        import nybble
        from tests.engine.small_models import greedy

        model = nybble.load({str(path)!r}, threads=2, context_length=1 << 18)
        chat = model.chat()
        text = "a " * 100_000 if {during!r} == "prompt" else "hello"
        chat.send(text)  # the template's first rendering takes longer than those that follow
        reply = chat.send(text, max_tokens=10**6)
        pieces = []
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            for piece in reply:
                pieces.append(piece)
        except KeyboardInterrupt:
            interrupted = time.monotonic()
        else:
            raise SystemExit("not interrupted")
        answer = reply.stream
        assert answer.finish_reason == "cancelled"
        cached = len(chat._session.ids)
        if {during!r} == "prompt":
            assert 0 < cached < answer.timings.prompt_tokens, cached
            assert chat.messages == ()
            # What was done of the prompt is not done again.
            kept = chat._session.ids
            assert kept == tuple(model.conversation([{{"role": "user", "content": text}}]))[:cached]
        else:
            assert len(answer.ids) > 10
            assert chat.messages[-1]["content"].startswith("".join(pieces))
            assert cached in (answer.timings.prompt_tokens + len(answer.ids) + more for more in (-2, -1, 0))
        ids = model.conversation([*chat.messages, {{"role": "user", "content": "and then"}}])
        follow_up = chat.send("and then", max_tokens=3)
        list(follow_up)
        assert follow_up.stream.ids == greedy(model, ids, 3)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=PATIENCE_SECONDS)
