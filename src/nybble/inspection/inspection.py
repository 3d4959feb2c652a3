"""What is found out about a model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LinearKind:
    """Linears that differ only in their layer. ``name`` has ``*`` for the layer's number.

    ``bits`` are those of a code (of a number, for floats); ``block`` is how many share a scale, None for floats;
    ``zero_points`` is "none", "symmetric", or how they are stored. ``accuracy_level`` is None where the op has none.
    """

    name: str
    count: int
    features: int
    outputs: int
    storage: str
    bits: int
    block: int | None
    zero_points: str
    accuracy_level: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something odd: ``where``, the ``reason`` it matters, and what to do, ``mend``: a command if there is one."""

    name: str
    where: str
    reason: str
    mend: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """``parameters`` counts weights of all kinds; ``bits_per_weight`` is what each costs in the file.

    ``tied`` says that the output head reads the embedding's weights; None where there is no head.
    """

    path: Path
    format: str
    architecture: str
    parameters: int
    file_bytes: int
    bits_per_weight: float
    metadata: Mapping[str, str]
    linears: tuple[LinearKind, ...]
    embedding: str
    tied: bool | None
    findings: tuple[Finding, ...]
