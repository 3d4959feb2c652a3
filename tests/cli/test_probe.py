"""``nybble probe``: this machine, and what runs on it."""

from __future__ import annotations

import json
import os

import pytest

from nybble import _native
from nybble.graph.dispatch import linear_kernels
from tests.cli.outcome import Nybble


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
    monkeypatch.setattr(_native, "available_isas", lambda: ["portable"])
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
