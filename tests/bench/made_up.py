"""Rows and results that nobody measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nybble.bench.cases import Case
from nybble.bench.row import Measured, Provenance, Row, build_row

CEILINGS = {"read_bandwidth": 1000.0, "int8_peak": 5000.0, "fp32_peak": 500.0}
FACTS = {
    "isa": "portable",
    "model_type": "llama Q4_0",
    "model_bytes": 123,
    "parameters": 456,
    "bits_per_weight": 4.5,
    "work": {
        "body": {"bytes": 80, "int8_products": 100, "fp32_products": 0},
        "head": {"bytes": 20, "int8_products": 50, "fp32_products": 0},
        "kv_bytes": 2.0,
        "step_rows": 512,
    },
}
ORIGIN = Provenance("a processor", "1.2.3", "abcdef", "2026-01-01T00:00:00+00:00")


def measured(
    seconds: Sequence[float], busy: Sequence[bool] | None = None, ceilings: Sequence[dict[str, float]] = (CEILINGS,)
) -> Measured:
    return Measured(tuple(seconds), tuple(busy or [False] * len(seconds)), tuple(ceilings))


GENERATION = Case(0, 10)


def row(case: Case = GENERATION, rates: Sequence[float] = (5.0,), engine: str = "nybble", **changes: Any) -> Row:
    """A row whose samples are ``rates``."""
    of_one = measured([case.tokens / rate for rate in rates], ceilings=(CEILINGS,) if engine == "nybble" else ())
    facts = FACTS if engine == "nybble" else {"version": "9"}
    made = build_row(engine, "tiny", "int8", 2, case, [of_one], facts, ORIGIN)
    return replace(made, **changes)
