"""Guards against: answers that are cut, mixed, half shown, or end for the wrong reason."""

from __future__ import annotations

import gc
import itertools
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nybble
from nybble.engine.generation import Timings
from nybble.engine.sampler import Sampler
from nybble.errors import InvalidParameter, TemplateError
from tests.models.tiny import byte_tokens
from tests.native.programs import sweep

from .small_models import greedy, scripted_gguf, small_gguf

END = 266
ANSWER = [*b"bc", *"é".encode(), 259, *"😀".encode(), 261, *b"xyz", 260, 262]
TEXT = "bcé the😀 axyzeron"
"""What the scripted model says to "A": characters of one token and of several, and tokens of several characters."""


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> nybble.LLM:
    chain = [ord("A"), *ANSWER, END]
    path = scripted_gguf(tmp_path_factory.mktemp("models") / "scripted.gguf", dict(pairwise(chain)))
    return nybble.load(path, threads=1)


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> nybble.LLM:
    path = small_gguf(tmp_path_factory.mktemp("models") / "random.gguf", storage="Q4_1")
    return nybble.load(path, threads=2)


def test_the_scripted_answer(scripted: nybble.LLM) -> None:
    """The scenery of the tests below: byte tokens are their bytes, and the model ends on its own."""
    assert byte_tokens()[ord("A")] == "A"
    answer = scripted.generate("A", raw=True)
    assert (answer.text, answer.ids, answer.finish_reason) == (TEXT, (*ANSWER, END), "end")
    timings = answer.timings
    assert (timings.prompt_tokens, timings.reused_tokens, timings.generated_tokens) == (1, 0, len(ANSWER) + 1)
    assert 0 < timings.prefill <= timings.first_token
    assert timings.decode > 0
    assert timings.prefill_rate == 1 / timings.prefill
    assert timings.decode_rate == len(ANSWER) / timings.decode


def test_pieces_are_whole_characters_and_up_to_date(scripted: nybble.LLM) -> None:
    stream, shown = scripted.stream("A", raw=True), ""
    for piece in stream:
        assert piece and "\ufffd" not in piece
        shown += piece
        assert stream.text == shown
        assert scripted.detokenize(stream.ids) == shown
        assert stream.timings.generated_tokens == len(stream.ids)
        assert stream.finish_reason is None
    assert shown == TEXT
    assert stream.finish_reason == "end"
    assert list(stream) == []


@pytest.mark.parametrize("max_tokens", range(1, len(ANSWER) + 3))
def test_at_most_max_tokens(scripted: nybble.LLM, max_tokens: int) -> None:
    """A character that was cut in the middle shows as U+FFFD, as decoding the same tokens shows it."""
    answer = scripted.generate("A", raw=True, max_tokens=max_tokens)
    assert answer.ids == (*ANSWER, END)[:max_tokens]
    assert answer.text == scripted.detokenize(answer.ids)
    assert answer.finish_reason == ("length" if max_tokens <= len(ANSWER) else "end")


@pytest.mark.parametrize("stop", sorted({TEXT[a:b] for a in range(len(TEXT)) for b in range(a + 1, a + 5)}))
def test_every_phrase_of_the_answer_stops_it(scripted: nybble.LLM, stop: str) -> None:
    """Within a token, over the border of tokens, over the border of characters."""
    stream = scripted.stream("A", raw=True, stop=["never said", stop])
    shown = "".join(stream)
    assert shown == stream.text == TEXT[: TEXT.index(stop)]
    assert stream.finish_reason == "stop"
    # No token is computed after the one that completes the phrase.
    assert stop not in scripted.detokenize(stream.ids[:-1])


def test_what_might_have_been_a_stop_is_shown_in_the_end(scripted: nybble.LLM) -> None:
    answer = scripted.generate("A", raw=True, stop="eron!")
    assert (answer.text, answer.finish_reason) == (TEXT, "end")
    answer = scripted.generate("A", raw=True, stop="é there", max_tokens=5)
    assert (answer.text, answer.finish_reason) == (TEXT[:7], "length")
    answer = scripted.generate("A", raw=True, stop="\ufffd", max_tokens=3)
    assert (answer.text, answer.finish_reason) == ("bc", "stop")


def test_a_leading_space_belongs_to_text_that_is_continued(tmp_path: Path) -> None:
    """Vocabularies that add a space when they encode take it away from a new turn's text only."""
    path = scripted_gguf(tmp_path / "spaces.gguf", {ord("A"): 259, ord("\n"): 259, 259: END})
    model = nybble.load(path, threads=1)
    model.tokenizer.strips_leading_space = True
    assert model.generate("A", raw=True).text == " the"
    assert model.generate("A").text == "the"


@pytest.mark.parametrize("prompt", range(1, 17))
def test_a_full_context_ends_the_answer(random: nybble.LLM, tmp_path: Path, prompt: int) -> None:
    model = nybble.load(random.info.path, threads=1, context_length=16)
    answer = model.generate("a" * prompt, raw=True)
    assert answer.finish_reason == "context"
    assert len(answer.ids) == 16 - prompt + 1
    assert list(answer.ids) == greedy(random, [ord("a")] * prompt, len(answer.ids))


def test_reasons_in_order(scripted: nybble.LLM) -> None:
    """What ends an answer at the same token as something else: the model, then the limit, then the context."""
    model = nybble.load(scripted.info.path, threads=1, context_length=len(ANSWER) + 1)
    assert model.generate("A", raw=True, max_tokens=len(ANSWER) + 1).finish_reason == "end"
    model = nybble.load(scripted.info.path, threads=1, context_length=5)
    assert model.generate("A", raw=True, max_tokens=5).finish_reason == "length"
    assert model.generate("A", raw=True, max_tokens=6).finish_reason == "context"


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_a_closed_stream_says_no_more(scripted: nybble.LLM, pieces: int) -> None:
    stream = scripted.stream("A", raw=True)
    shown = "".join(itertools.islice(stream, pieces))
    stream.close()
    stream.close()
    assert list(stream) == []
    answer = stream.finish()
    assert (answer.text, answer.finish_reason) == (shown, "cancelled")
    # Its session is free again: what it had is reused.
    again = scripted.generate("A" + shown, raw=True, max_tokens=1)
    assert again.timings.reused_tokens == again.timings.prompt_tokens - 1 or not pieces


def test_finish_goes_on_from_where_the_stream_is(scripted: nybble.LLM) -> None:
    stream = scripted.stream("A", raw=True)
    next(stream)
    assert stream.finish().text == TEXT


@pytest.mark.parametrize("how", ["drop", "break"])
def test_a_stream_that_is_given_up_frees_its_session(random: nybble.LLM, how: str) -> None:
    def begin() -> None:
        if how == "break":
            for _ in random.stream("hello", raw=True):
                break
        else:
            next(random.stream("hello", raw=True))

    begin()
    gc.collect()
    (session,) = random._sessions._idle
    assert session.ids == tuple(random.tokenize("hello"))


@sweep(10)
@given(st.data())
def test_streams_side_by_side_are_what_they_are_alone(random: nybble.LLM, data: st.DataObject) -> None:
    """Also with logits computed in between, streams that end early, and prompts that begin alike."""
    prompts = data.draw(st.lists(st.sampled_from(["a", "ab", "abc", "xyz", "a b"]), min_size=2, max_size=4))
    alone = {prompt: greedy(random, random.tokenize(prompt), 12) for prompt in prompts}
    logits = random.logits([1, 2, 3])
    streams = [random.stream(prompt, raw=True, max_tokens=12) for prompt in prompts]
    open_ones = list(range(len(streams)))
    while open_ones:
        index = data.draw(st.sampled_from(open_ones))
        event = data.draw(st.sampled_from(["next", "next", "next", "next", "logits", "close"]))
        if event == "logits":
            np.testing.assert_array_equal(random.logits([1, 2, 3]), logits)
            continue
        if event == "close":
            streams[index].close()
        if next(streams[index], None) is None:
            open_ones.remove(index)
    for prompt, stream in zip(prompts, streams, strict=True):
        assert stream.ids == alone[prompt][: len(stream.ids)]
        assert len(stream.ids) == len(alone[prompt]) or stream.finish_reason == "cancelled"


SAMPLING = {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.3, "seed": 7}


def test_sampling_is_that_of_the_sampler_over_cold_logits(random: nybble.LLM) -> None:
    """The penalty sees prompt and answer; each draw is one of the sampler's."""
    answer = random.generate("hello", raw=True, max_tokens=30, **SAMPLING)
    sampler, ids = Sampler(nybble.SamplingOptions(**SAMPLING)), random.tokenize("hello")
    prompt = len(ids)
    for _ in answer.ids:
        ids.append(sampler.sample(random.new_session().prefill(ids)[0], ids))
    assert list(answer.ids) == ids[prompt:]
    assert len(set(answer.ids)) > 10


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_seed_gives_the_same_answer(random: nybble.LLM, threads: int) -> None:
    """On any number of threads, after other work, and in a chat after a reset."""
    model = nybble.load(random.info.path, threads=threads)
    expected = random.generate("hello", max_tokens=30, **SAMPLING)
    assert model.generate("hello", max_tokens=30, **SAMPLING).ids == expected.ids
    model.generate("something else", max_tokens=5, **SAMPLING)
    assert model.generate("hello", max_tokens=30, **SAMPLING).ids == expected.ids
    chat = model.chat()
    for _ in range(2):
        assert "".join(chat.send("hello", max_tokens=30, **SAMPLING)) == expected.text
        chat.reset()
    other = model.generate("hello", max_tokens=30, **{**SAMPLING, "seed": 8})
    assert other.ids != expected.ids


def test_no_seed_is_a_fresh_one(random: nybble.LLM) -> None:
    answers = {random.generate("hello", max_tokens=20, temperature=2.0).ids for _ in range(2)}
    assert len(answers) == 2


def test_stream_equals_generate(random: nybble.LLM) -> None:
    for raw in (True, False):
        whole = random.generate("hello", raw=raw, max_tokens=20)
        stream = random.stream("hello", raw=raw, max_tokens=20)
        assert "".join(stream) == whole.text
        assert tuple(stream.ids) == whole.ids


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5"),
        ({"stop": [""]}, r"stop is \[''\]"),
        ({"stop": ["a", 3]}, r"stop is \['a', 3\]"),
        ({"temp": 1.0}, "unknown parameter 'temp'; sampling parameters are temperature, top_k"),
        ({"temperature": -1}, "temperature"),
        ({"raw": True, "system": "Be kind."}, "raw"),
        ({"system": "\ud800"}, "not valid Unicode"),
    ],
)
def test_parameters_out_of_range_are_refused_at_once(random: nybble.LLM, parameters: dict, problem: str) -> None:
    """When the answer is asked for, not when its first piece is."""
    for call in (random.stream, random.generate):
        with pytest.raises(InvalidParameter, match=problem):
            call("hello", **parameters)


def test_prompts_that_are_no_text_are_refused(random: nybble.LLM) -> None:
    with pytest.raises(InvalidParameter, match="empty"):
        random.stream("", raw=True)
    for raw in (True, False):
        with pytest.raises(InvalidParameter, match="not valid Unicode"):
            random.stream("\udcff", raw=raw)


def test_a_model_without_template_continues_text_and_does_not_chat(tmp_path: Path) -> None:
    model = nybble.load(small_gguf(tmp_path / "plain.gguf", extra={"tokenizer.chat_template": None}), threads=1)
    assert not model.has_chat_template
    assert model.generate("hello", max_tokens=9).ids == model.generate("hello", max_tokens=9, raw=True).ids
    for call in (model.chat, lambda: model.stream("hello", system="Be kind.")):
        with pytest.raises(TemplateError, match=r"plain\.gguf: the model has no chat template"):
            call()


def test_a_broken_template_leaves_plain_text(tmp_path: Path) -> None:
    model = nybble.load(small_gguf(tmp_path / "broken.gguf", extra={"tokenizer.chat_template": "{% if %}"}), threads=1)
    assert model.has_chat_template
    assert model.generate("hello", max_tokens=9, raw=True).ids
    for call in (model.chat, lambda: model.stream("hello")):
        with pytest.raises(TemplateError, match=r"broken\.gguf"):
            call()


def test_nothing_measured_is_no_rate() -> None:
    assert (Timings().prefill_rate, Timings().decode_rate) == (0, 0)
    assert Timings(generated_tokens=1, decode=0.0).decode_rate == 0
