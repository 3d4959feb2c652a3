"""The arguments of ``nybble run``, read without the library that declares them.

Importing that library takes longer than reading 64 tokens. What is read here is what it would read
(``tests/cli/test_quick_arguments.py``); anything unusual, help and mistakes are left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_Converter = Callable[[str], Any]

VALUES: Mapping[str, tuple[str, _Converter]] = {
    "--model": ("model", str),
    "-m": ("model", str),
    "--max-tokens": ("max_tokens", int),
    "-n": ("max_tokens", int),
    "--temperature": ("temperature", float),
    "--top-k": ("top_k", int),
    "--top-p": ("top_p", float),
    "--min-p": ("min_p", float),
    "--repetition-penalty": ("repetition_penalty", float),
    "--seed": ("seed", int),
    "--system": ("system", str),
    "--threads": ("threads", int),
    "-t": ("threads", int),
    "--context": ("context", int),
    "--accuracy": ("accuracy", str),
    "--kv": ("kv", str),
}
SWITCHES: Mapping[str, str] = {
    "--raw": "raw",
    "--offline": "offline",
    "--verbose": "verbose",
    "-v": "verbose",
    "--json": "as_json",
}
_STOP = "--stop"


def quick_arguments(arguments: Sequence[str]) -> dict[str, Any] | None:
    """The parameters in ``arguments``, which stand behind ``nybble run``; None if the library has to read them."""
    found: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            if "prompt" in found:
                return None
            found["prompt"] = argument
        elif argument in SWITCHES:
            found[SWITCHES[argument]] = True
        elif argument in VALUES or argument == _STOP:
            value = next(rest, "-")
            if value.startswith("-"):  # missing, or one that only looks like an option
                return None
            if argument == _STOP:
                found.setdefault("stop", []).append(value)
                continue
            name, convert = VALUES[argument]
            try:
                found[name] = convert(value)
            except ValueError:
                return None
        else:
            return None
    return found
