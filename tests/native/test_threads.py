"""Guards against: pools that hang, leak threads, answer differently, or burn CPU while there is nothing to do."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from nybble import _native

from .programs import ISAS, OpProgram, Rung, alarm

OPS = 100

BRIEF, SHARED = 8, 1100
"""Features of rows so short that a thread runs an op of some of them for all, and of rows that are shared."""


HERE = min(os.sched_getaffinity(0))


def adding(rows: int, width: int, ops: int, threads: int | _native.ThreadPool) -> tuple[OpProgram, NDArray[np.float32]]:
    """A chain of ``ops`` additions, each of which needs the one before to be done, and what it must give."""
    values = np.arange(rows * width, dtype=np.float32).reshape(rows, width) % 97
    program = OpProgram(rows, ISAS[0], threads)
    (x,) = program.given(values)
    sums = [x, program.new(width), program.new(width)]
    for op in range(ops):
        program.native.add("add", x, sums[0] if op == 0 else sums[1 + op % 2], sums[2 - op % 2])
    program.outputs(sums[2 - (ops - 1) % 2], width)
    return program, (ops + 1) * values


def test_many_pools_come_and_go() -> None:
    def alive() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = alive()
    for threads in list(range(1, 8)) * 30:
        assert _native.ThreadPool(threads).size == threads
    assert alive() == before


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize(("rows", "width"), [(5, SHARED), (40, SHARED), (5, BRIEF), (1, SHARED)])
def test_every_step_on_a_pool_gives_the_same(threads: int, rows: int, width: int) -> None:
    """Also with more threads than CPUs and more threads than rows, and with ops that one thread runs for all, often."""
    program, expected = adding(rows, width, OPS, threads)
    for _ in range(10):
        np.testing.assert_array_equal(program.run(), expected)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_a_step_on_threads_in_places_of_their_own_gives_the_same(threads: int) -> None:
    """With all of them on one CPU: whoever is late is not waited for unless it holds a task."""
    pool = _native.ThreadPool([(HERE, False, False)] * threads)
    program, expected = adding(5, SHARED, OPS, pool)
    for _ in range(10):
        np.testing.assert_array_equal(program.run(), expected)
    times = program.native.time_ops(list(range(5)), [(program.cache(), 5)], [0])
    assert len(times) == OPS + 2
    assert program.native.first_non_finite(list(range(5)), [(program.cache(), 5)], [0]) == ""


@pytest.mark.parametrize("pool", [1, 2, [HERE], [HERE, HERE]])
def test_a_signal_ends_a_step(pool: int | list[int]) -> None:
    """Ctrl-C does not wait for a long prompt, also when the caller takes no part in it."""
    native_pool = _native.ThreadPool(pool if isinstance(pool, int) else [(cpu, False, False) for cpu in pool])
    program, _ = adding(512, SHARED, 4000, native_pool)  # a second or so

    cache = program.cache()
    with alarm() as ring_in:
        ring_in(0.01)
        with pytest.raises(Rung):
            program.run(cache=cache)
    assert cache.length == 0, "the step went on to its end"


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_ops_without_rows_end_too(threads: int) -> None:
    """A prompt's inner steps ask for no outputs: what follows the selection has nothing to do, and the rest goes on."""
    program, _ = adding(5, SHARED, OPS, threads)
    for _ in range(10):
        cache = program.cache()
        assert program.native.run(list(range(5)), [(cache, 5)], []).shape == (0, SHARED)
        assert cache.length == 5


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("width", [SHARED, BRIEF])
def test_every_op_is_timed(threads: int, width: int) -> None:
    """Whoever runs it; together they take as long as the step."""
    program, _ = adding(5, width, OPS, threads)
    began = time.perf_counter()
    times = program.native.time_ops(list(range(5)), [(program.cache(), 5)], [0])
    took = time.perf_counter() - began
    assert [label for label, _ in times] == ["embed", *["add"] * OPS, "select"]
    assert all(seconds >= 0 for _, seconds in times)
    assert 0 < sum(seconds for _, seconds in times) <= took


def test_programs_share_a_pool() -> None:
    programs = [adding(3, width, OPS, 3) for width in (BRIEF, SHARED)]
    for program, expected in programs * 3:
        np.testing.assert_array_equal(program.run(), expected)


def test_a_pool_has_at_least_one_thread() -> None:
    for nothing in (0, []):
        with pytest.raises(ValueError, match="at least one"):
            _native.ThreadPool(nothing)
    with pytest.raises(TypeError):
        _native.ThreadPool(-1)


def test_idle_threads_sleep() -> None:
    """They spin for some microseconds after a step, then use no CPU."""
    for threads in (2, 7):
        adding(5, SHARED, OPS, threads)[0].run()
    time.sleep(0.05)
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.1


def test_python_runs_while_a_step_does() -> None:
    """A step holds no lock of Python's: another thread makes progress during it."""
    program, expected = adding(512, 512, 2000, 1)
    ticks, done = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    watcher = threading.Thread(target=tick)
    watcher.start()
    try:
        found = program.run()
    finally:
        during = ticks
        done.set()
        watcher.join()
    np.testing.assert_array_equal(found, expected)
    assert during > 5
