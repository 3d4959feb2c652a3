"""Guards against: Python threads whose answers mix, that wait for one another for ever, or bring the process down."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nybble
from nybble import _native
from nybble.engine import loading
from nybble.machine.placement import Crew

from .small_models import bits, small_gguf, some_ids

PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nybble.LLM:
    path = small_gguf(tmp_path_factory.mktemp("models") / "model.gguf", "qwen3", "Q4_1", context_length=700)
    return nybble.load(path, threads=2)


@pytest.fixture(autouse=True)
def hurried_switches() -> Iterator[None]:
    """Threads change places as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(jobs: list[Callable[[], object]]) -> list[object]:
    """The results of ``jobs``, which begin at the same moment."""
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> object:
        start.wait(PATIENCE_SECONDS)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(PATIENCE_SECONDS) for future in [pool.submit(run, job) for job in jobs]]


def test_one_model_used_by_several_threads_answers_as_it_does_alone(model: nybble.LLM) -> None:
    """Plain answers, sampled ones, conversations, long prompts and logits, all of one model at once."""

    def conversation() -> list[str]:
        chat = model.chat("Be kind.")
        return ["".join(chat.send(text, max_tokens=10)) for text in ("a", "b", "c")]

    def long_prompts() -> list[tuple[int, ...]]:
        return [model.generate("long " * count, raw=True, max_tokens=4).ids for count in (120, 121, 90)]

    jobs: list[Callable[[], object]] = [
        lambda: [model.generate(text, max_tokens=15).ids for text in ("hello", "there", "hello")],
        lambda: [model.generate(text, raw=True, max_tokens=15).text for text in ("there", "hello")],
        lambda: [model.generate("hello", max_tokens=15, temperature=1.0, seed=seed).ids for seed in range(3)],
        lambda: [bits(model.logits(some_ids(model, 30, seed))).tolist() for seed in range(3)],
        conversation,
        long_prompts,
    ]
    alone = [job() for job in jobs]
    for _ in range(3):
        assert together(jobs) == alone
    # Sessions that were needed for a moment are not kept: each may hold a whole context.
    assert len(model._sessions._idle) == 1


def test_threads_in_places_of_their_own_answer_alike(model: nybble.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on boards whose cores differ: the caller only waits, and each thread runs what its core has."""
    cpu, available = min(os.sched_getaffinity(0)), _native.available_isas()
    crew = Crew(_native.ThreadPool([(cpu, False, False)] * 3), (), "here", ("not elsewhere",))
    monkeypatch.setattr(loading, "assemble", lambda threads: crew)
    monkeypatch.setattr(loading, "isas_of", lambda threads: [available[-1], available[0], available[-1]])
    placed = nybble.load(model.info.path)
    assert placed.info.threads == 3
    assert placed.generate("hello", max_tokens=15).ids == model.generate("hello", max_tokens=15).ids
    ids = some_ids(model, 600, 0)
    np.testing.assert_array_equal(bits(placed.logits(ids)), bits(model.logits(ids)))


def test_two_models_do_not_wait_for_each_other(model: nybble.LLM) -> None:
    other = nybble.load(model.info.path, threads=2, accuracy="f32")
    jobs = [lambda: other.generate("hello", max_tokens=20).ids, lambda: model.generate("hello", max_tokens=20).ids]
    alone = [job() for job in jobs]
    assert together(jobs * 2) == alone * 2


def test_another_thread_may_close_an_answer(model: nybble.LLM) -> None:
    """As a server does whose client has gone."""
    stream = model.stream("hello", max_tokens=600)
    begun, closed = threading.Event(), threading.Event()

    def consume() -> str:
        for _ in stream:
            begun.set()
            if len(stream.ids) > 3:
                closed.wait(PATIENCE_SECONDS)
        return stream.text

    def close() -> None:
        begun.wait(PATIENCE_SECONDS)
        stream.close()
        closed.set()

    text, _ = together([consume, close])
    assert stream.finish_reason == "cancelled"
    assert model.generate("hello", max_tokens=600).text.startswith(text)
    np.testing.assert_array_equal(model.logits([1, 2]), model.logits([1, 2]))
