"""Reading the small text files of /proc and /sys, where anything may be missing."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """The contents of a file; empty where it is missing or unreadable, as much of /proc and /sys is in containers."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def parse_number(text: str) -> int | None:
    """A whole number, or None for anything else."""
    try:
        return int(text)
    except ValueError:
        return None


def read_kibibytes(path: Path, key: str) -> int | None:
    """The value of a ``key: number kB`` line, in bytes."""
    for line in read_text(path).splitlines():
        name, _, value = line.partition(":")
        if name == key:
            number = parse_number(value.removesuffix("kB").strip())
            return None if number is None else number * 1024
    return None
