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
class WeightFormat:
    """Of random weights: codes of 2, 4 or 8 bits in blocks along K, with offsets if ``asymmetric``; or fp16.

    The latter is 16 bits, without blocks: ``block`` is 1.
    """

    bits: int
    block: int
    asymmetric: bool = False

    @property
    def name(self) -> str:
        """``W4B32``; ``W4B32A`` when blocks have offsets; ``F16``."""
        if self.bits == 16:
            return "F16"
        return f"W{self.bits}B{self.block}{'A' if self.asymmetric else ''}"


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A published architecture at its true shape with random weights."""

    shape: str
    weights: WeightFormat

    @property
    def name(self) -> str:
        """``qwen2.5-0.5b W4B32``."""
        return f"{self.shape} {self.weights.name}"


@dataclass(frozen=True, slots=True)
class Operation:
    """A linear of ``n`` outputs from ``k`` features on its own, with random weights."""

    n: int
    k: int
    weights: WeightFormat

    @property
    def name(self) -> str:
        """``linear 2048x6144 W4B32``: features, outputs and format."""
        return f"linear {self.k}x{self.n} {self.weights.name}"


@dataclass(frozen=True, slots=True)
class Job:
    """All ``cases`` of one engine with one number of threads, ``repeats`` samples of each, in one process.

    ``model`` is a path, or empty for the ``random`` one. Of an ``operation``, the engine is a kernel and the prompt of
    a case is the number of rows.
    """

    engine: str
    model: str
    random: RandomModel | None
    threads: int
    accuracy: str
    cases: tuple[Case, ...]
    repeats: int
    operation: Operation | None = None
    kv: str = "fp16"

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that :meth:`to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        random, operation = fields.pop("random"), fields.pop("operation")
        for subject in (random, operation):
            if subject is not None:
                subject["weights"] = WeightFormat(**subject["weights"])
        return cls(
            random=None if random is None else RandomModel(**random),
            operation=None if operation is None else Operation(**operation),
            cases=tuple(Case(**case) for case in fields.pop("cases")),
            **fields,
        )
