"""What is odd about the numbers of weights: the checks that all formats share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .inspection import Finding, LinearKind

# With a channel so many times the others, a step of its int8 code is 5 % of their root mean square:
# channel / 127 is a step, and rounding errs by step / sqrt(12).
OUTLIER_RATIO = 0.05 * 127 * 12**0.5

_COUNTING = re.compile(r"(?:(?<![A-Za-z0-9])|(?<=layer)|(?<=layers)|(?<=block)|(?<=blk))\d+(?![A-Za-z0-9])")

KEEPS_OUTLIERS = "nothing: nybble keeps outliers in fp32; elsewhere, use fp32 activations"
FETCH_AGAIN = "fetch or quantise the model again"


def check_numbers(name: str, values: NDArray[np.generic], what: str) -> list[Finding]:
    """Whether ``values``, fp32 or fp16 of any shape, are finite and not all zero. ``what`` they are: weights, scales.

    bfloat16 comes as fp32.
    """
    if values.size == 0:
        return []
    lowest, highest = float(np.min(values)), float(np.max(values))
    if not (np.isfinite(lowest) and np.isfinite(highest)):
        count = int(np.count_nonzero(~np.isfinite(values.astype(np.float32))))
        reason = f"{count} of its {values.size} {what} are NaN or infinite; so will be whatever they multiply"
        return [Finding("non-finite weights", name, reason, FETCH_AGAIN)]
    if lowest == highest == 0.0:
        return [Finding("all zero", name, f"its {values.size} {what} are all 0; it computes nothing", FETCH_AGAIN)]
    return []


def check_floats(name: str, values: NDArray[np.generic], dimensions: int, mend: str) -> list[Finding]:
    """The checks of a tensor stored as floats, of so many ``dimensions``; ``mend`` is what to do about outliers."""
    # Zeros are how a model writes that it has no bias.
    findings = [
        found
        for found in check_numbers(name, values, "weights")
        if found.name != "all zero" or not name.endswith("bias")
    ]
    if dimensions == 1 and "norm" in name and not findings:
        findings += check_outliers(name, values, mend)
    return findings


def check_outliers(name: str, norm: NDArray[np.generic], mend: str) -> list[Finding]:
    """Whether a norm's weight, (features,), makes a channel so large that int8 activations lose the others."""
    sizes = np.sort(np.abs(norm.astype(np.float32).ravel()))
    if sizes.size < 2 or not np.isfinite(sizes[-1]):
        return []
    others = float(np.sqrt(np.mean(np.square(sizes[:-1], dtype=np.float64))))
    if float(sizes[-1]) <= OUTLIER_RATIO * others:
        return []
    reason = (
        f"one channel is {sizes[-1] / others:.0f} times the others; int8 activations that share its scale keep less "
        "than 1 part in 20 of their size"
    )
    return [Finding("outlier channel", name, reason, mend)]


def without_numbers(name: str) -> str:
    """``name`` with ``*`` for each number that counts layers: one by itself, or right behind a word for a layer.

    Numbers behind other words tell kinds apart: ``w1`` and ``w3``, ``fc1`` and ``fc2``.
    """
    return _COUNTING.sub("*", name)


def in_kinds(linears: Iterable[LinearKind]) -> tuple[LinearKind, ...]:
    """Equal linears counted, in the order of their first."""
    counts = Counter(replace(linear, name=without_numbers(linear.name)) for linear in linears)
    return tuple(replace(kind, count=count) for kind, count in counts.items())


def in_groups(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings of the same kind in several layers as one that counts them."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.name, without_numbers(finding.where), finding.mend), []).append(finding)
    return tuple(
        first if len(same) == 1 else replace(first, where=f"{first.where} and {len(same) - 1} more")
        for same in groups.values()
        for first in same[:1]
    )
