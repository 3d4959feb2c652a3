"""Guards against: a public surface that grows, lacks words, or is slow to import."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from importlib.resources import files

import pytest

import nybble

NAMES = sorted(nybble.__all__)


def public_members(owner: type) -> list[str]:
    return [name for name in vars(owner) if not name.startswith("_")]


def test_there_are_under_ten_names_and_all_of_them_are_there() -> None:
    assert len(NAMES) < 10
    assert all(hasattr(nybble, name) for name in NAMES)
    assert set(NAMES) <= set(dir(nybble))
    with pytest.raises(AttributeError, match="module 'nybble' has no attribute 'Model'"):
        nybble.Model  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
def test_every_name_and_member_says_what_it_is(name: str) -> None:
    """Fields of data classes are described by their class."""
    exported = getattr(nybble, name)
    assert inspect.getdoc(exported)
    if not isinstance(exported, type):
        return
    for member in public_members(exported):
        value = inspect.getattr_static(exported, member)
        if callable(value) or isinstance(value, property):
            assert inspect.getdoc(value), f"{name}.{member}"
        else:
            assert f"``{member}``" in (exported.__doc__ or ""), f"{name}.{member}"


@pytest.mark.parametrize("name", NAMES)
def test_every_call_is_typed(name: str) -> None:
    """Each parameter and result of each method; the types exist."""
    exported = getattr(nybble, name)
    calls = [exported] if not isinstance(exported, type) else []
    if isinstance(exported, type) and not issubclass(exported, Exception):
        calls += [value for member in public_members(exported) if callable(value := getattr(exported, member))]
    for call in calls:
        signature = inspect.signature(call)
        assert signature.return_annotation is not inspect.Signature.empty, call
        for parameter in list(signature.parameters.values()):
            assert parameter.name == "self" or parameter.annotation is not inspect.Parameter.empty, call


def test_type_checkers_are_told() -> None:
    assert files("nybble").joinpath("py.typed").is_file()
    assert typing.get_type_hints(nybble.Generation)["ids"] == tuple[int, ...]


def test_importing_is_light() -> None:
    """The numbers are measured by benchmarks; this names the culprit."""
    script = "import sys, nybble; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    heavy = {"numpy", "tokenizers", "jinja2", "rich", "typer", "huggingface_hub", "nybble._native"}
    assert heavy.isdisjoint(done.stdout.split())


def test_the_example_of_the_package_is_python() -> None:
    """It is what everyone copies first."""
    lines = [line[4:] for line in (nybble.__doc__ or "").splitlines() if line.startswith((">>> ", "... "))]
    compile("\n".join(lines), "example", "exec")
    assert "nybble.load" in lines[1]
