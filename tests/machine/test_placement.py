"""Guards against: threads on cores that cannot run what they are given, on no core at all, or two on one core.

The machines are made up: nobody has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nybble import _native
from nybble.machine.placement import Crew, assemble
from nybble.machine.topology import CPU, CoreKind, online_cpus, parse_cpu_list

from . import made_up
from .made_up import Machine

FakeRoot = Callable[[Mapping[str, str]], Path]
QUOTA = {
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    "sys/fs/cgroup/cpu.max": "300000 100000\n",
}
"""Three CPUs."""


@pytest.fixture
def crew(fake_root: FakeRoot) -> Callable[..., Crew]:
    def build(machine: Machine, threads: int | None = None, files: Mapping[str, str] | None = None) -> Crew:
        root = fake_root({**machine.files(), **(files or {})})
        return assemble(threads, root, start=machine.start, affinity=machine.affinity)  # type: ignore[arg-type]

    return build


def test_k1_uses_all_cores_and_learns_which_have_a_matrix_unit(crew: Callable[..., Crew]) -> None:
    """All eight say the same of themselves, so all are told to try it out; what is not there is no reason to stop."""
    machine = made_up.k1()
    found = crew(machine)
    assert machine.starts == [[(cpu, False, True) for cpu in range(8)]]
    assert [member.matrix_unit for member in found.members] == ["ime1"] * 4 + ["none"] * 4
    assert {member.core for member in found.members} == {"Spacemit(R) X60"}
    assert "some of these have a matrix unit" in found.why
    assert not found.notes


@pytest.mark.parametrize(
    ("affinity", "threads", "files", "cpus"),
    [
        (range(8), 4, {}, [0, 1, 2, 3]),
        (range(8), 5, {}, [0, 1, 2, 3, 4]),
        (range(8), None, QUOTA, [0, 1, 2]),
        ([2, 3, 6, 7], None, {}, [2, 3, 6, 7]),
        ([4, 5, 6], 2, {}, [4, 5]),
        ([7], None, {}, [7]),
    ],
)
def test_k1_takes_matrix_units_first_and_nothing_it_may_not(
    crew: Callable[..., Crew], affinity: list[int], threads: int | None, files: Mapping[str, str], cpus: list[int]
) -> None:
    found = crew(made_up.k1(affinity=set(affinity)), threads, files)
    assert [member.cpu for member in found.members] == cpus


def test_clusters_and_not_numbers_say_who_is_whose_neighbour(crew: Callable[..., Crew]) -> None:
    machine = made_up.k1()
    about = dict(machine.cpus)
    for cpu, other in enumerate([0, 4, 1, 5, 2, 6, 3, 7]):
        cluster = "0,2,4,6" if cpu % 2 == 0 else "1,3,5,7"
        about[cpu] = made_up.MadeUpCPU(about[other].text, cluster, str(cpu), 256, about[other].matrix_unit)
    found = crew(Machine(about), 4)
    assert [member.cpu for member in found.members] == [0, 2, 4, 6]


@pytest.mark.parametrize("threads", [9, 16, 64])
@pytest.mark.parametrize("machine", [made_up.k1, made_up.k3])
def test_more_threads_than_places_are_told(
    crew: Callable[..., Crew], machine: Callable[[], Machine], threads: int
) -> None:
    """Two threads that hold one core would halve the speed of all; a vendor's build aborts."""
    found = crew(machine(), threads)
    cpus = [member.cpu for member in found.members]
    assert len(cpus) == len(set(cpus)) == 8
    (note,) = found.notes
    assert f"{threads} threads were asked for" in note


@pytest.mark.parametrize("threads", range(1, 9))
def test_k3_takes_a_core_of_each_pair_first(crew: Callable[..., Crew], threads: int) -> None:
    machine = made_up.k3()
    found = crew(machine, threads)
    assert machine.starts == [[(cpu, True, True) for cpu in (8, 10, 12, 14, 9, 11, 13, 15)[:threads]]]
    assert {(member.vector_bits, member.matrix_unit) for member in found.members} == {(1024, "ime2")}


def test_k3_by_default_takes_as_many_as_the_process_may(crew: Callable[..., Crew]) -> None:
    assert len(crew(made_up.k3()).members) == 8
    assert [member.cpu for member in crew(made_up.k3(), files=QUOTA).members] == [8, 10, 12]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gate_problem": "/proc/set_ai_thread: No such file or directory"}, "/proc/set_ai_thread: No such file"),
        ({"gate_problem": "/proc/set_ai_thread: Permission denied"}, "Permission denied"),
        ({"outside": {8, 9, 10, 11, 12, 13, 14, 15}}, "CPU 8 does not take a thread: Invalid argument"),
        ({"outside": {13}}, "CPU 13 does not take a thread: Invalid argument"),
        ({"vector_bits": 256}, "CPU 8 has VLEN 256, expected 1024"),
    ],
)
def test_k3_falls_back_to_general_cores_and_says_why(
    crew: Callable[..., Crew], changes: Mapping[str, object], problem: str
) -> None:
    """Never a silent slow path: on X100 cores it takes many times as long."""
    found = crew(made_up.k3(**changes))  # type: ignore[arg-type]
    assert [member.cpu for member in found.members] == list(range(8))
    assert {(member.vector_bits, member.matrix_unit) for member in found.members} == {(256, "ime1")}
    (note,) = found.notes
    assert note.startswith("not on A100 cores: ")
    assert problem in note


def test_where_no_core_takes_threads_the_scheduler_decides(crew: Callable[..., Crew]) -> None:
    machine = made_up.k3(gate_problem="closed", outside={3})
    found = crew(machine)
    assert machine.starts[-1] == 8
    assert [member.cpu for member in found.members] == [None] * 8
    assert found.notes == (
        "not on A100 cores: closed",
        "not on X100 cores: CPU 3 does not take a thread: Invalid argument",
    )
    machine = made_up.k1(outside={5})
    assert {(member.cpu, member.matrix_unit) for member in crew(machine).members} == {(None, "none")}


@pytest.mark.parametrize(
    ("machine", "threads", "expected"),
    [
        (made_up.plain_board(), None, 4),
        (made_up.plain_board(affinity={1, 2}), None, 2),
        (made_up.plain_board(), 9, 9),
        (made_up.x86(1), None, 4),
        (made_up.x86(2), None, 8),
        (made_up.x86(2, affinity={0, 4}), None, 2),
        (made_up.x86(2), 3, 3),
    ],
)
def test_cores_that_are_alike_are_left_to_the_scheduler(
    crew: Callable[..., Crew], machine: Machine, threads: int | None, expected: int
) -> None:
    """And nobody tries SpacemiT's words on processors of others, where they may mean anything."""
    found = crew(machine, threads)
    assert machine.starts == [expected]
    assert [member.cpu for member in found.members] == [None] * expected
    assert not found.notes


def test_what_cpus_say_of_themselves(fake_root: FakeRoot) -> None:
    cpus = online_cpus(fake_root(made_up.x86(2).files()))
    assert cpus[5] == CPU(5, "Some CPU", CoreKind.OTHER, 0, 2)
    cpus = online_cpus(fake_root(made_up.k3().files()))
    assert [cpu.kind for cpu in cpus] == [CoreKind.X100] * 8 + [CoreKind.A100] * 8
    assert [cpu.cluster for cpu in cpus] == [0] * 4 + [4] * 4 + [8] * 4 + [12] * 4


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("5", {5}),
        ("", set()),
        ("a-b", set()),
        ("3-1", set()),
        ("0-99999999", set()),
        ("1-2-3", set()),
    ],
)
def test_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


def test_this_machine_runs_its_crew() -> None:
    found = assemble(2)
    assert isinstance(found.pool, _native.ThreadPool)
    assert [list(member.isas) for member in found.members] == [_native.available_isas()] * 2


def test_threads_on_a100_cores_get_the_memory_beside_them(
    crew: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block by block in the order of the threads; elsewhere nobody is asked, and nothing said."""
    monkeypatch.delenv("NYBBLE_TCM", raising=False)
    found = crew(made_up.k3(tcm_problem=""))
    assert found.pool.staged == [("libspine_tcm.so", [0, 2, 4, 6, 1, 3, 5, 7])]  # type: ignore[attr-defined]
    assert found.tcm == "8 blocks of 384 KiB"
    assert crew(made_up.k3()).tcm == "not used: no such library"
    for machine in (made_up.k1(), made_up.k3(vector_bits=256), made_up.plain_board(), made_up.x86(1)):
        other = crew(machine)
        assert other.tcm is None
        assert other.pool.staged == []  # type: ignore[attr-defined]
    monkeypatch.setenv("NYBBLE_TCM", "/another.so")
    assert crew(made_up.k3()).pool.staged[0][0] == "/another.so"  # type: ignore[attr-defined]
    monkeypatch.setenv("NYBBLE_TCM", "off")
    found = crew(made_up.k3(tcm_problem=""))
    assert (found.tcm, found.pool.staged) == ("not used: NYBBLE_TCM=off", [])  # type: ignore[attr-defined]
