"""What one worker process is to measure, as JSON between processes.

Standard library only: it also runs in the Pythons of other engines.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from .cases import Case

OURS = "nybble"
"""What this engine is called among others."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A published architecture at its true shape with random weights: 4- or 8-bit codes in blocks along K."""

    shape: str
    bits: int
    block: int
    asymmetric: bool

    @property
    def name(self) -> str:
        """``qwen2.5-0.5b W4B32``; with an A behind it when blocks have offsets."""
        return f"{self.shape} W{self.bits}B{self.block}{'A' if self.asymmetric else ''}"


@dataclass(frozen=True, slots=True)
class Job:
    """All ``cases`` of one engine with one number of threads, ``repeats`` samples of each, in one process.

    ``model`` is a path, or empty for the ``random`` one.
    """

    engine: str
    model: str
    random: RandomModel | None
    threads: int
    accuracy: str
    cases: tuple[Case, ...]
    repeats: int

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that :meth:`to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        random = fields.pop("random")
        cases = tuple(Case(**case) for case in fields.pop("cases"))
        return cls(random=None if random is None else RandomModel(**random), cases=cases, **fields)
