"""Where numbers come from; never from somebody else's repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nybble.bench.provenance import provenance, source_revision

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "__init__.py").write_text("1\n")
    git(tmp_path, "add", "__init__.py")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_revision(checkout: Path) -> None:
    revision = source_revision(checkout)
    assert revision is not None and git(checkout, "rev-parse", "HEAD").startswith(revision)
    (checkout / "__init__.py").write_text("2\n")
    assert source_revision(checkout) == f"{revision}+"


def test_a_package_inside_another_checkout(checkout: Path) -> None:
    """Guards against naming the commit of a project in whose directory nybble happens to be installed."""
    inside = checkout / "venv" / "nybble"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("\n")
    assert source_revision(inside) is None


def test_no_repository(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("\n")
    assert source_revision(tmp_path) is None
    assert source_revision(tmp_path / "missing") is None


def test_no_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert source_revision(checkout) is None


def test_of_this_process() -> None:
    found = provenance()
    assert found.cpu and found.version and found.measured_at.endswith("+00:00")
