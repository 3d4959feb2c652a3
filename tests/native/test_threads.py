"""Guards against: pools that hang, leak threads, answer differently, or burn CPU while there is nothing to do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from nybble import _native

from .programs import ISAS, OpProgram

OPS = 100


def adding(rows: int, width: int, ops: int, threads: int) -> tuple[OpProgram, NDArray[np.float32]]:
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
def test_every_step_on_a_pool_gives_the_same(threads: int) -> None:
    """Also with more threads than CPUs and more threads than rows, often."""
    program, expected = adding(5, 8, OPS, threads)
    for _ in range(10):
        np.testing.assert_array_equal(program.run(), expected)


def test_programs_share_a_pool() -> None:
    programs = [adding(3, width, OPS, 3) for width in (8, 20)]
    for program, expected in programs * 3:
        np.testing.assert_array_equal(program.run(), expected)


def test_a_pool_has_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="at least one"):
        _native.ThreadPool(0)
    with pytest.raises(TypeError):
        _native.ThreadPool(-1)


def test_idle_threads_sleep() -> None:
    """They spin for some microseconds after a step, then use no CPU."""
    for threads in (2, 7):
        adding(5, 8, OPS, threads)[0].run()
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
