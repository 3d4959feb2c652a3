"""Where benchmark numbers come from: the machine, the version, the moment."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

from .. import __version__
from ..machine.description import describe
from .row import Provenance


def provenance() -> Provenance:
    """That of this process, now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Provenance(describe().processor, __version__, source_revision(Path(__file__).parent), now)


def source_revision(directory: Path) -> str | None:
    """The git commit of the sources in ``directory``, with a ``+`` behind it if they were changed since.

    None if they are not under version control, as where nybble was installed from a package.
    """
    # An installed package may lie inside some other project's checkout: only files that git knows count.
    if _git(directory, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(directory, "rev-parse", "--short=12", "HEAD")
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else f"{commit}{'+' if changed else ''}"


def _git(directory: Path, *arguments: str) -> str | None:
    """What git printed; None if it failed or is not there."""
    try:
        command = ["git", "-C", str(directory), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
