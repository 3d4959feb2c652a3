"""What a value of an ONNX graph is known to be while the graph is walked.

The walk sees one step of a few tokens over a short past. Values that depend on lengths alone are computed for real;
activations are followed element by element: each element of each activation has a number of its own, and reshaping,
slicing or concatenating moves the numbers. So an op's operands are checked for what they are, not for how some
exporter happened to lay them out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...formats.onnx_model import OnnxTensor

STEP_TOKENS = 3
"""Tokens of the step that is followed; their positions are PAST_TOKENS and up."""
PAST_TOKENS = 5
"""Tokens in the cache before that step. Numbers that no head count or dimension is likely to be mistaken for."""

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A value computed from lengths, masks and positions."""

    array: Array


@dataclass(frozen=True, slots=True)
class Deferred:
    """A value that lengths alone decide, but that cannot be computed for the lengths of the walk, for this ``reason``.

    The masks of some exporters are made for prompts without a past and for single tokens only.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token ids, (1, STEP_TOKENS)."""

    shape: tuple[int, ...] = (1, STEP_TOKENS)


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """An activation: for each of its elements the number of the element of a buffer (or cache) that it is."""

    numbers: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cache:
    """The keys or values of all tokens so far, as an attention op hands them out: only their shape may be asked."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """An initialiser; ``transposed`` if its two dimensions are to be read in the other order."""

    tensor: OnnxTensor
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Dequantised:
    """A quantised matrix that a node decodes before use, perhaps ``transposed`` since.

    ``axis`` is that of the blocks of ``block`` codes, or with a ``block`` of 0 that of one scale for each index.
    """

    codes: OnnxTensor
    scales: OnnxTensor
    zero_points: OnnxTensor | None
    axis: int
    block: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Expression:
    """Part of a formula that several nodes spell: ``kind`` says which part, ``operand`` is what it is applied to."""

    kind: str
    operand: Elements
    epsilon: float = 0.0


Value = Known | Deferred | Tokens | Elements | Cache | Weight | Dequantised | Expression
