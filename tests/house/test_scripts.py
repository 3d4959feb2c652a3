"""Guards against: scripts that run for minutes when they are asked what they do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("options", [["-h"], ["--help"], ["--quick", "--help"]], ids=" ".join)
@pytest.mark.parametrize("name", sorted(path.name for path in SCRIPTS.iterdir()))
def test_help_is_the_comment_at_the_top(name: str, options: list[str], tmp_path: Path) -> None:
    """From any folder, with nothing done."""
    outcome = subprocess.run(
        [SCRIPTS / name, *options],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=10,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert f"scripts/{name} " in outcome.stdout
    lines = (SCRIPTS / name).read_text().splitlines()
    comment = lines[1 : next(at for at, line in enumerate(lines) if not line.startswith("#"))]
    assert outcome.stdout.splitlines() == [line.removeprefix("#").removeprefix(" ") for line in comment]
    assert list(tmp_path.iterdir()) == []
