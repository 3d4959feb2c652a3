"""``nybble probe``: this machine, and what runs on it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nybble import _native
from nybble.graph.dispatch import linear_kernels
from nybble.machine import description, placement
from nybble.machine.description import describe
from nybble.machine.placement import Crew, Member
from nybble.machine.topology import online_cpus
from tests.cli.outcome import Nybble
from tests.machine import made_up
from tests.machine.made_up import Arrival, Machine, Pool


def test_json(nybble: Nybble) -> None:
    """Guards against kernels that are missing, or shown as running where they cannot."""
    facts = json.loads(nybble("probe", "--json").output)
    available = _native.available_isas()
    assert facts["instruction_sets"] == {"available": available, "selected": available[0]}
    assert [kernel["name"] for kernel in facts["kernels"]] == [kernel.name for kernel in linear_kernels()]
    for kernel in facts["kernels"]:
        assert kernel["runs_here"] == (kernel["isa"] in available) == (kernel["why_not"] is None)
        assert kernel["selected"] == (kernel["isa"] == available[0])
    assert facts["machine"]["allowance"]["affinity"] == len(os.sched_getaffinity(0))
    assert facts["machine"]["memory_available"]["bytes"] > 0
    assert facts["ceilings"][0]["threads"] == 1
    assert facts["ceilings"][-1]["threads"] == facts["machine"]["allowance"]["count"]
    for ceilings in facts["ceilings"]:
        assert ceilings["isa"] == available[0]
        assert min(ceilings[name] for name in ("read_bandwidth", "int8_peak", "fp32_peak")) > 0


def test_text(nybble: Nybble) -> None:
    outcome = nybble("probe")
    assert outcome.code == 0
    facts = json.loads(nybble("probe", "--json").output)
    assert facts["machine"]["processor"] in outcome.output
    assert facts["machine"]["memory_available"]["limited_by"] in outcome.output
    for kernel in linear_kernels():
        assert kernel.name in outcome.output


def test_ceilings_are_remembered(nybble: Nybble) -> None:
    """Guards against a probe that measures each time, or never again."""
    first, second = (nybble("probe").output.splitlines() for _ in range(2))
    assert [line for line in second if line not in first and not line.startswith("memory:")] == []
    again = nybble("probe", "--measure", "--json")
    assert json.loads(again.output)["ceilings"] == json.loads(nybble("probe", "--json").output)["ceilings"]


def test_kernels_this_cpu_lacks(nybble: Nybble, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a table that only works on the best of CPUs."""
    crew = Crew(Pool([Arrival(isas=("portable",))]), (Member(None, "", 0, "none", ("portable",)),), "here", ())  # type: ignore[arg-type]
    monkeypatch.setattr(placement, "assemble", lambda threads: crew)
    lines = nybble("probe").output.splitlines()
    assert "instruction sets: portable; selected: portable" in lines
    for kernel in linear_kernels():
        (line,) = [line for line in lines if line.startswith(kernel.name)]
        state = "yes, selected" if kernel.isa == "portable" else f"no: this CPU has no {kernel.isa}"
        assert line.endswith(state)


def test_selected_by_hand(nybble: Nybble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NYBBLE_ISA", "portable")
    assert "selected: portable" in nybble("probe").output
    monkeypatch.setenv("NYBBLE_ISA", "mmx")
    outcome = nybble("probe")
    assert outcome.code == 1
    assert "mmx" in outcome.error and "portable" in outcome.error


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    """This machine becomes one that is made up."""
    assemble = placement.assemble

    def become(machine: Machine) -> None:
        for name, text in machine.files().items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        crew = assemble(None, tmp_path, start=machine.start, affinity=machine.affinity)  # type: ignore[arg-type]
        monkeypatch.setattr(placement, "assemble", lambda threads: crew)
        described = replace(describe(), cpus=online_cpus(tmp_path))
        monkeypatch.setattr(description, "describe", lambda: described)

    return become


def test_cores_that_differ(nybble: Nybble, board: Callable[[Machine], None], registry: None) -> None:
    """Guards against a board's owner who cannot see why it is slow."""
    board(made_up.k1())
    lines = nybble("probe").output.splitlines()
    begin = lines.index("threads: 8, one on each X60 core, as some of these have a matrix unit")
    core = "Spacemit(R) X60, VLEN 256"
    assert lines[begin + 1 : begin + 4] == [
        f"  ime1: 0 on CPU 0, 1 on CPU 1, 2 on CPU 2, 3 on CPU 3 ({core}, ime1 tried out)",
        f"  rvv256: 4 on CPU 4, 5 on CPU 5, 6 on CPU 6, 7 on CPU 7 ({core})",
        "instruction sets: ime1, rvv256, rvv128, portable; selected: ime1",
    ]
    assert any(line.startswith("CPUs: ") and ", in 2 clusters" in line for line in lines)
    board(made_up.k3(gate_problem="/proc/set_ai_thread: Permission denied"))
    output = nybble("probe").output
    assert "  not on A100 cores: /proc/set_ai_thread: Permission denied" in output
    assert "threads: 8, one on each X100 core" in output
    board(made_up.x86(2))
    assert ", 2 for each core (" in nybble("probe").output


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that has kernels for any machine."""
    isas = ["ime2", "ime1", "rvv512", "rvv256", "rvv128", *_native.available_isas()]
    kernels = [(f"linear_w4_int8_panel32_{isa}", isa, "w4", "int8", "panel32") for isa in isas]
    monkeypatch.setattr(_native, "linear_kernels", lambda: kernels)
