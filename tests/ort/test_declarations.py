"""Guards against: places, types and members of ONNX Runtime's interface that were declared wrongly.

Compared with headers of ONNX Runtime 1.23 or newer, which NYBBLE_ONNXRUNTIME_HEADERS names the folder of.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADERS = os.environ.get("NYBBLE_ONNXRUNTIME_HEADERS")
COMPILER = shutil.which("c++")

pytestmark = pytest.mark.skipif(HEADERS is None or COMPILER is None, reason="no headers or no compiler")


def compiled(native: Path) -> subprocess.CompletedProcess[str]:
    source = Path(__file__).parent / "declarations.cpp"
    includes = ["-I", str(native), "-I", str(HEADERS)]
    command = [str(COMPILER), "-std=c++20", "-w", "-fsyntax-only", *includes, str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_declarations_are_those_of_the_headers() -> None:
    result = compiled(ROOT / "native")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("slots.inc", "OPERATOR_SLOT(86,", "OPERATOR_SLOT(87,"),
        ("slots.inc", "bool* is_constant", "int* is_constant"),
        ("declarations.hpp", "FLOAT16 = 10", "FLOAT16 = 11"),
        ("declarations.hpp", "    void (*ReleaseEp)(OrtEpFactory*, OrtEp*);\n", ""),
    ],
)
def test_a_wrong_declaration_is_seen(file: str, right: str, wrong: str, tmp_path: Path) -> None:
    copy = tmp_path / "onnxruntime"
    copy.mkdir()
    for path in (ROOT / "native" / "onnxruntime").glob("*.[hi]*"):
        shutil.copy(path, copy)
    text = (copy / file).read_text(encoding="utf-8")
    assert right in text
    (copy / file).write_text(text.replace(right, wrong), encoding="utf-8")
    assert re.search("static assertion failed|error:", compiled(tmp_path).stderr)
