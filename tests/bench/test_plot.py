"""The picture: one of the kinds there are, or one line on why not."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from nybble.bench.cases import Case
from nybble.bench.plot import check_plot, draw
from nybble.errors import BenchmarkFailed, InvalidParameter
from tests.bench.made_up import row

ROWS = [
    row(Case(512, 0), [900.0, 1000.0]),
    row(Case(512, 0), [200.0], engine="llama-cpp"),
    row(Case(0, 128, 4096, 8), [50.0]),
]


@pytest.mark.parametrize(("name", "beginning"), [("out.png", b"\x89PNG"), ("out.svg", b"<?xml")])
def test_draw(tmp_path: Path, name: str, beginning: bytes) -> None:
    pytest.importorskip("matplotlib")
    check_plot(tmp_path / name)
    draw(ROWS, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(beginning)


def test_other_kinds() -> None:
    with pytest.raises(InvalidParameter, match=r"\.png or \.svg"):
        check_plot(Path("out.pdf"))


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against finding out after everything was measured."""

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BenchmarkFailed, match=r"pip install 'nybble\[plot\]'"):
        check_plot(Path("out.png"))
