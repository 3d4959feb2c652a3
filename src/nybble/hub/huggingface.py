"""Models of Hugging Face repositories, fetched with huggingface_hub into its own cache.

That cache is shared with every other program that uses the hub, so a model is never fetched twice.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import DownloadFailed, ModelNotFound, NybbleError
from .cache import Fetched
from .catalogue import HubSource
from .checksum import file_sha256
from .choice import choose
from .huggingface_cache import find_cached, repository_directory
from .progress import Progress, watched

_TIMEOUT_SECONDS = 15.0
_REFERENCE = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(?::(?P<selector>[^:]+))?", re.ASCII)


class RepositoryNotFound(ModelNotFound):
    """There is no such repository: the hub has none, hides it from this user, or may not be asked."""


@dataclass(frozen=True, slots=True)
class HubReference:
    """``org/repo`` and, after a colon, a file name, a quantisation or a folder."""

    repository: str
    selector: str | None = None

    def __str__(self) -> str:
        return self.repository if self.selector is None else f"{self.repository}:{self.selector}"


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    size: int | None
    sha256: str | None


def parse_reference(name: str) -> HubReference | None:
    """The reference a name spells, or None if it has not the form ``org/repo[:file, quantisation or folder]``."""
    match = _REFERENCE.fullmatch(name)
    # "models/tiny.gguf" has the form too, but is meant as a path.
    if match is None or match["repository"].lower().endswith(".gguf"):
        return None
    return HubReference(match["repository"], match["selector"])


def fetch(reference: HubReference, *, offline: bool = False, progress: Progress | None = None) -> Path:
    """Path of the model's first file or its folder, downloaded as far as it is not in the Hugging Face cache.

    Without a network, what the cache holds is used. Raises ModelNotFound (RepositoryNotFound if it is the repository
    that is missing) or DownloadFailed.
    """
    if offline or _offline_mode():
        if cached := find_cached(reference.repository, reference.selector):
            return cached
        raise RepositoryNotFound(f"{reference} is not in the Hugging Face cache, and offline mode forbids to fetch it")
    with _hub_errors(reference.repository):
        try:
            revision, remote = _list_files(reference.repository)
        except Exception as error:
            if _is_answer(error) or (cached := find_cached(reference.repository, reference.selector)) is None:
                raise
            return cached
        chosen = choose(remote, reference.selector, reference.repository)
        paths = [
            _download(reference.repository, revision, file, remote[file], progress=progress) for file in chosen.files
        ]
    return chosen.path_in(paths[0].parents[len(PurePosixPath(chosen.files[0]).parts) - 1])


def fetch_file(source: HubSource, workspace: Path, size: int, progress: Progress | None = None) -> Fetched:
    """Download one file of ``size`` bytes at a pinned commit into ``workspace``, for our own cache."""
    from huggingface_hub import hf_hub_download

    with (
        _hub_errors(source.repository),
        _silent_client(),
        watched(workspace, f"downloading {PurePosixPath(source.file).name}", size, progress),
    ):
        path = Path(
            hf_hub_download(source.repository, source.file, revision=source.revision, local_dir=workspace / "hub")
        )
    return Fetched(path, file_sha256(path, progress))


def _offline_mode() -> bool:
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def _list_files(repository: str) -> tuple[str, dict[str, _RemoteFile]]:
    """The commit of the main branch, and its files."""
    from huggingface_hub import HfApi

    information = HfApi().model_info(repository, files_metadata=True, timeout=_TIMEOUT_SECONDS)
    if information.sha is None:
        raise DownloadFailed(f"{repository}: the hub did not say which commit is current")
    return information.sha, {
        sibling.rfilename: _RemoteFile(sibling.size, sibling.lfs.sha256 if sibling.lfs else None)
        for sibling in information.siblings or []
    }


def _download(repository: str, revision: str, file: str, remote: _RemoteFile, *, progress: Progress | None) -> Path:
    """One file in the Hugging Face cache, checked against what the hub says of it when it is new."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(repository, file, revision=revision)
    if isinstance(cached, str) and remote.size in (None, Path(cached).stat().st_size):
        return Path(cached)
    blobs = repository_directory(repository) / "blobs"
    watching = watched(
        blobs, f"downloading {PurePosixPath(file).name}", remote.size or 0, progress if remote.size else None
    )
    with _silent_client(), watching:
        # A cached file of another size is damaged; the client would hand it out as it is.
        path = Path(hf_hub_download(repository, file, revision=revision, force_download=isinstance(cached, str)))
    if remote.sha256 is not None and (found := file_sha256(path, progress)) != remote.sha256:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise DownloadFailed(
            f"{repository}/{file} has SHA-256 {found}, the hub says {remote.sha256}; it was thrown away, try again"
        )
    return path


@contextlib.contextmanager
def _silent_client() -> Iterator[None]:
    """The client draws no bars of its own beside ours."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _is_answer(error: Exception) -> bool:
    """True if the hub was reached and answered about this repository, False if it could not be asked."""
    from huggingface_hub.errors import HfHubHTTPError

    status = getattr(getattr(error, "response", None), "status_code", 500)
    return isinstance(error, HfHubHTTPError) and 400 <= status < 500 and status not in (408, 429)


@contextlib.contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """One line for each way the hub can refuse. The client's errors come from three HTTP libraries, by its version."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub = constants.ENDPOINT
    try:
        yield
    except NybbleError:
        raise
    except GatedRepoError as error:
        raise DownloadFailed(
            f"{repository} is gated: accept its terms at {hub}/{repository}, then log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise RepositoryNotFound(
            f"{hub} has no repository {repository}, or it is private and needs `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{repository} has no such revision on {hub}") from error
    except LocalEntryNotFoundError as error:
        raise DownloadFailed(f"{repository}: {hub} could not be reached; check the network and try again") from error
    except EntryNotFoundError as error:
        raise ModelNotFound(f"{repository} has no such file on {hub}") from error
    except HFValidationError as error:
        raise ModelNotFound(f"{repository} cannot be the name of a repository: {_first_line(error)}") from error
    except HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", "no status")
        advice = "check the login with `hf auth whoami`" if status in (401, 403) else "try again later"
        raise DownloadFailed(f"{repository}: {hub} answered with status {status}; {advice}") from error
    except Exception as error:
        raise DownloadFailed(
            f"{repository} could not be fetched from {hub}: {_first_line(error) or type(error).__name__}"
        ) from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
