"""Ceilings: measured once, remembered as long as they may be believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nybble.bench import ceilings
from nybble.bench.ceilings import Ceilings, known_ceilings
from nybble.machine.description import MachineDescription, describe

MACHINE = describe()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, str]]:
    """What was measured so far; each measurement is ten times the one before."""
    calls: list[tuple[int, str]] = []

    def measure(threads: int, isa: str, machine: MachineDescription) -> Ceilings:
        calls.append((threads, isa))
        return Ceilings(threads, isa, 10.0 ** len(calls), 1.0, 1.0)

    monkeypatch.setattr(ceilings, "measure_ceilings", measure)
    monkeypatch.setenv("NYBBLE_CACHE", str(tmp_path / "cache"))
    return calls


def test_measured_for_real() -> None:
    """Guards against units that are off: no machine reads less than 10 MB or more than 10 TB a second."""
    found = ceilings.measure_ceilings(1, "portable", replace(MACHINE, caches=()))
    assert (found.threads, found.isa) == (1, "portable")
    assert 1e7 < found.read_bandwidth < 1e13
    assert 1e7 < found.int8_peak < 1e14 and 1e7 < found.fp32_peak < 1e14


def test_remembered(measured: list[tuple[int, str]]) -> None:
    first = known_ceilings([1, 2], "portable", MACHINE)
    assert [found.read_bandwidth for found in first] == [10, 100]
    assert known_ceilings([2, 1], "portable", MACHINE) == first[::-1]
    assert measured == [(1, "portable"), (2, "portable")]


def test_measured_again(measured: list[tuple[int, str]]) -> None:
    """Guards against numbers of another processor, instruction set, thread count or day."""
    known_ceilings([1], "portable", MACHINE)
    known_ceilings([1], "avx2", MACHINE)
    known_ceilings([3], "portable", MACHINE)
    known_ceilings([1], "portable", replace(MACHINE, processor="another"))
    assert measured == [(1, "portable"), (1, "avx2"), (3, "portable"), (1, "portable")]
    (again,) = known_ceilings([1], "portable", MACHINE, measure_again=True)
    assert [again] == known_ceilings([1], "portable", MACHINE)
    assert len(measured) == 5


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "\x00",
        '{"KEY": 1}',
        '{"KEY": {"threads": 1}}',
        '{"KEY": {"threads": 1, "isa": "portable", "read_bandwidth": "much", "int8_peak": 1, "fp32_peak": 1}}',
        '{"KEY": {"threads": 1, "isa": "portable", "read_bandwidth": NaN, "int8_peak": 1, "fp32_peak": 1}}',
        '{"KEY": {"threads": 1, "isa": "portable", "read_bandwidth": 0, "int8_peak": 1, "fp32_peak": 1}}',
        '{"KEY": {"threads": 2, "isa": "portable", "read_bandwidth": 1, "int8_peak": 1, "fp32_peak": 1}}',
    ],
)
def test_a_damaged_file_is_not_believed(measured: list[tuple[int, str]], tmp_path: Path, content: str) -> None:
    known_ceilings([1], "portable", MACHINE)
    file = tmp_path / "cache" / "ceilings.json"
    (key,) = json.loads(file.read_text())
    file.write_text(content.replace("KEY", key))
    assert [found.read_bandwidth for found in known_ceilings([1], "portable", MACHINE)] == [100]
    assert known_ceilings([1], "portable", MACHINE)[0].read_bandwidth == 100


def test_nowhere_to_remember(measured: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Guards against a probe that fails where it may not write."""
    (tmp_path / "cache").write_text("a file where the directory would be")
    for _ in range(2):
        known_ceilings([1], "portable", MACHINE)
    monkeypatch.setenv("NYBBLE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")

    def no_home(path: Path) -> Path:
        raise RuntimeError("no home directory")

    monkeypatch.setattr(Path, "expanduser", no_home)
    known_ceilings([1], "portable", MACHINE)
    assert len(measured) == 3
