"""Guards against: conversations that lose, invent or repeat turns, and answers that depend on what was cached."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import nybble
from nybble.engine.chat import Chat, Reply
from nybble.engine.session import common_prefix
from nybble.errors import ContextOverflow, InvalidParameter
from tests.native.programs import sweep

from .small_models import greedy, small_gguf, spoilt_gguf

CONTEXT = 150
TO_THE_END = 1000
Message = dict[str, str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nybble.LLM:
    path = small_gguf(tmp_path_factory.mktemp("models") / "model.gguf", storage="Q4_1", context_length=CONTEXT)
    return nybble.load(path, threads=1)


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


class Conversations(RuleBasedStateMachine):
    """Several chats and plain answers of one ``model`` in turn, cut short in every way."""

    model: ClassVar[nybble.LLM]
    chats = Bundle("chats")

    @initialize()
    def nothing(self) -> None:
        self.expected: dict[Chat, list[Message]] = {}
        self.opening: dict[Chat, list[Message]] = {}

    @rule(target=chats, system=st.sampled_from([None, "", "Be kind."]))
    def begin(self, system: str | None) -> Chat:
        chat = self.model.chat(system)
        self.opening[chat] = [] if system is None else [said("system", system)]
        self.expected[chat] = list(self.opening[chat])
        return chat

    @rule(
        chat=chats,
        text=st.sampled_from(["a", "ab", "abc <|im_end|>", "the other"]),
        max_tokens=st.integers(1, 12),
        pieces=st.sampled_from([0, 1, 3, TO_THE_END, TO_THE_END, TO_THE_END]),
        close=st.booleans(),
    )
    def send(self, chat: Chat, text: str, max_tokens: int, pieces: int, close: bool) -> None:
        conversation = [*self.expected[chat], said("user", text)]
        ids, cached = self.model.conversation(conversation), chat._session.ids
        reply, shown = chat.send(text, max_tokens=max_tokens), []
        if len(ids) > CONTEXT:
            with pytest.raises(ContextOverflow):
                next(reply)
            return
        for _ in range(pieces):
            if (piece := next(reply, None)) is None:
                break
            shown.append(piece)
        answer = reply.stream
        assert answer.text == "".join(shown)
        assert answer.ids == greedy(self.model, ids, max_tokens)[: len(answer.ids)]
        if pieces:
            assert answer.timings.reused_tokens == min(common_prefix(cached, ids), len(ids) - 1)
        if pieces == TO_THE_END:
            assert len(answer.ids) == len(greedy(self.model, ids, max_tokens))
            assert answer.text == self.model.detokenize(answer.ids)
        elif close:
            reply.close()
        if answer.text or pieces == TO_THE_END:
            self.expected[chat] = [*conversation, said("assistant", answer.text)]

    @rule(chat=chats)
    def reset(self, chat: Chat) -> None:
        chat.reset()
        self.expected[chat] = list(self.opening[chat])

    @rule(text=st.sampled_from(["a", "the"]))
    def answer(self, text: str) -> None:
        answer = self.model.generate(text, max_tokens=5)
        assert list(answer.ids) == greedy(self.model, self.model.conversation([said("user", text)]), 5)

    @invariant()
    def messages_are_those_that_were_said(self) -> None:
        for chat, messages in self.expected.items():
            assert list(chat.messages) == messages


def test_random_conversations_are_what_they_are_cold(model: nybble.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn is as if it were the first computation, and reuses exactly what its chat has in common with it."""
    monkeypatch.setattr(Conversations, "model", model, raising=False)
    run_state_machine_as_test(Conversations, settings=sweep(25))


def test_an_answer_under_way_is_part_of_the_conversation(model: nybble.LLM) -> None:
    """So that a loop left with ``break`` keeps what was shown, though nobody closed anything."""
    chat = model.chat("Be kind.")
    shown = ""
    for piece in chat.send("a", max_tokens=8):
        shown += piece
        assert chat.messages[-2:] == (said("user", "a"), said("assistant", shown))
        if len(shown) > 2:
            break
    assert chat.messages == (said("system", "Be kind."), said("user", "a"), said("assistant", shown))


def test_late_replies_change_nothing(model: nybble.LLM) -> None:
    """A reply that is closed, finished or asked again after the conversation went on is history."""
    chat = model.chat()
    first = chat.send("a", max_tokens=8)
    shown = next(first)
    second = chat.send("b", max_tokens=8)
    assert list(first) == []
    answered = "".join(second)
    messages = chat.messages
    assert [message["content"] for message in messages] == ["a", shown, "b", answered]
    first.close()
    assert next(second, None) is None
    assert chat.messages == messages
    third = chat.send("c", max_tokens=8)
    next(third)
    chat.reset()
    third.close()
    assert list(third) == []
    assert chat.messages == ()


def test_a_turn_that_is_refused_leaves_the_answer_under_way(model: nybble.LLM) -> None:
    chat = model.chat()
    reply = chat.send("a", max_tokens=8)
    shown = next(reply)
    for text, parameters in (("\ud800", {}), ("b", {"max_tokens": 0}), ("b", {"temperature": -1})):
        with pytest.raises(InvalidParameter):
            chat.send(text, **parameters)
    shown += "".join(reply)
    assert chat.messages == (said("user", "a"), said("assistant", shown))


def test_an_answer_that_fails_keeps_what_was_shown(tmp_path: Path) -> None:
    """Here by a number that is not finite, met when a certain token is fed back."""
    healthy = nybble.load(small_gguf(tmp_path / "healthy.gguf"), threads=1)
    ids = healthy.generate("a", max_tokens=8).ids
    bad = next(token for token in ids[2:] if token not in healthy.conversation([said("user", "a")]))
    model = nybble.load(spoilt_gguf(tmp_path / "spoilt.gguf", "token_embd.weight", bad, float("nan")), threads=1)
    chat, shown = model.chat(), ""
    with pytest.raises(nybble.NybbleError, match="embedding"):
        for piece in chat.send("a", max_tokens=8):
            shown += piece
    assert shown and chat.messages == (said("user", "a"), said("assistant", shown))
    chat.reset()
    assert next(chat.send("a", max_tokens=8))


def test_a_chat_needs_text(model: nybble.LLM) -> None:
    with pytest.raises(InvalidParameter, match="not valid Unicode"):
        model.chat("\ud800")


def test_saving(model: nybble.LLM, tmp_path: Path) -> None:
    chat, path = model.chat("Sei höflich."), tmp_path / "chat.json"
    path.write_text("older")
    reply = chat.send("Grüße 😀", max_tokens=8)
    next(reply)
    chat.save(path)
    assert json.loads(path.read_text("utf-8")) == list(chat.messages)
    assert "Grüße 😀" in path.read_text("utf-8")
    assert list(tmp_path.iterdir()) == [path]
    list(reply)
    chat.save(str(path))
    assert json.loads(path.read_text("utf-8")) == list(chat.messages)


def test_saving_where_that_is_not_possible(model: nybble.LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind, and an older file stays whole."""
    chat, path = model.chat(), tmp_path / "chat.json"
    for place in (tmp_path / "none" / "chat.json", tmp_path, "", ".", "/"):
        with pytest.raises(OSError):
            chat.save(place)
    path.write_text("older")
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        chat.save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "older"


def test_a_saved_chat_is_readable_as_any_new_file(model: nybble.LLM, tmp_path: Path) -> None:
    """A temporary file's permissions are not those people expect of a file they asked for."""
    previous = os.umask(0o022)
    try:
        path = tmp_path / "chat.json"
        model.chat().save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    finally:
        os.umask(previous)


def test_a_reply_is_an_iterator_with_details(model: nybble.LLM) -> None:
    reply = model.chat().send("a", max_tokens=4)
    assert isinstance(reply, Reply) and iter(reply) is reply
    list(reply)
    assert reply.stream.finish_reason in ("length", "end")
