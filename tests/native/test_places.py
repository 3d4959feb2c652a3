"""Guards against: threads that are not where they were sent, or say so wrongly, and results that depend on it."""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path

import pytest

from nybble import _native

HERE = min(os.sched_getaffinity(0))
NOWHERE = 1023
"""A CPU that no machine these tests run on has."""


def test_a_thread_stays_where_it_was_sent_and_its_caller_does_not() -> None:
    before = os.sched_getaffinity(0)
    pool = _native.ThreadPool([(HERE, False, False)] * 2)
    assert pool.size == 2
    assert [(found.cpu, found.isas, found.problem) for found in pool.arrivals] == [
        (HERE, _native.available_isas(), "")
    ] * 2
    assert os.sched_getaffinity(0) == before
    workers = {int(task.name) for task in Path("/proc/self/task").iterdir()} - {threading.get_native_id()}
    assert any(os.sched_getaffinity(task) == {HERE} for task in workers)


@pytest.mark.skipif(platform.machine() == "riscv64", reason="the others' words are not tried out")
def test_no_matrix_unit_on_other_processors() -> None:
    (found,) = _native.ThreadPool([(HERE, False, True)]).arrivals
    assert found.matrix_unit == "none"


@pytest.mark.parametrize("cpu", [NOWHERE, -1, 1 << 20])
def test_a_cpu_that_takes_no_thread(cpu: int) -> None:
    there, here = _native.ThreadPool([(cpu, False, True), (HERE, False, False)]).arrivals
    assert there.problem == f"CPU {cpu} does not take a thread: Invalid argument"
    assert (there.cpu, there.isas) == (-1, [])
    assert (here.cpu, here.problem) == (HERE, "")


def test_a_gated_core_is_asked_for_before_it_is_entered(tmp_path: Path) -> None:
    gate = tmp_path / "set_ai_thread"
    gate.write_text("")
    (found,) = _native.ThreadPool([(HERE, True, False)], str(gate)).arrivals
    assert (found.cpu, found.problem) == (HERE, "")
    assert gate.read_text() == "0"


def test_a_gate_that_lets_nobody_through(tmp_path: Path) -> None:
    """The id of the thread is tried as well: kernels differ in what they want."""
    gate = tmp_path / "set_ai_thread"
    gate.write_text("")
    (found,) = _native.ThreadPool([(NOWHERE, True, False)], str(gate)).arrivals
    assert found.problem == f"CPU {NOWHERE} does not take a thread that wrote to {gate}: Invalid argument"
    assert int(gate.read_text()) > 1
    (found,) = _native.ThreadPool([(HERE, True, False)], str(tmp_path / "none")).arrivals
    assert found.problem == f"{tmp_path / 'none'}: No such file or directory"
    (found,) = _native.ThreadPool([(HERE, True, False)], str(tmp_path)).arrivals
    assert found.problem == f"{tmp_path}: Is a directory"
