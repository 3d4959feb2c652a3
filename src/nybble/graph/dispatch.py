"""Which kernel computes a linear, and why each better one was refused: a table walk, not a decision tree."""

from __future__ import annotations

import enum
import os
from collections.abc import Collection
from dataclasses import dataclass

from .. import _native
from ..errors import InvalidParameter, KernelUnavailable


class Accuracy(enum.Enum):
    """How activations enter the linears.

    INT8 rounds them to int8 in groups where the weights are quantised, as every fast engine does; F32 keeps them fp32.
    """

    INT8 = "int8"
    F32 = "f32"

    @classmethod
    def parse(cls, name: str) -> Accuracy:
        """The accuracy called ``name``; raises :class:`InvalidParameter` naming those there are."""
        try:
            return cls(name)
        except ValueError:
            names = ", ".join(accuracy.value for accuracy in cls)
            raise InvalidParameter(f"accuracy {name!r} is not one of {names}") from None


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """One line of the native registry.

    ``weights`` is the packed type it reads (w4, w8, f16, bf16, f32) and ``layout`` how these lie; ``activations`` int8
    or f32.
    """

    name: str
    isa: str
    weights: str
    activations: str
    layout: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel chosen, and for each kernel that would have been better ``(name, why not)``."""

    kernel: LinearKernel
    refused: tuple[tuple[str, str], ...]


def linear_kernels() -> tuple[LinearKernel, ...]:
    """Every linear kernel of this build, the preferred ones first."""
    return tuple(LinearKernel(*row) for row in _native.linear_kernels())


def selected_isa() -> str:
    """The instruction set to use: the best this CPU has, or the one ``NYBBLE_ISA`` names.

    Raises :class:`KernelUnavailable` when that one is not available, listing those that are.
    """
    available = _native.available_isas()
    forced = os.environ.get("NYBBLE_ISA", "")
    if not forced:
        return available[0]
    if forced not in available:
        raise KernelUnavailable(f"NYBBLE_ISA={forced} is not available here; available: {', '.join(available)}")
    return forced


def isas_of(threads: _native.ThreadPool) -> tuple[str, ...]:
    """What each of ``threads`` is to run: the best its CPU has, or what ``NYBBLE_ISA`` names where its CPU has that.

    Raises :class:`KernelUnavailable` when no CPU has it, listing what there is.
    """
    available = [arrival.isas for arrival in threads.arrivals]
    forced = os.environ.get("NYBBLE_ISA", "")
    if forced and not any(forced in isas for isas in available):
        names = ", ".join(dict.fromkeys(isa for isas in available for isa in isas))
        raise KernelUnavailable(f"NYBBLE_ISA={forced} is not available here; available: {names}")
    return nearest_isas(threads, forced)


def nearest_isas(threads: _native.ThreadPool, isa: str) -> tuple[str, ...]:
    """What each of ``threads`` runs where ``isa`` is asked for: that, or the best its CPU has instead."""
    return tuple(isa if isa in arrival.isas else arrival.isas[0] for arrival in threads.arrivals)


def leading_isa(isas: Collection[str]) -> str:
    """Of what the threads run, the one that kernels and layouts are chosen for: the first in the registry."""
    return next(kernel.isa for kernel in linear_kernels() if kernel.isa in isas)


def own_kernel(kernel: LinearKernel, isa: str) -> LinearKernel:
    """What a thread that runs ``isa`` takes where ``kernel`` was chosen: its own for the same weights, if there is one.

    Both give the same bits.
    """
    kind = (kernel.weights, kernel.activations, kernel.layout)
    own = {other.isa: other for other in linear_kernels() if (other.weights, other.activations, other.layout) == kind}
    return own.get(isa) or own.get(_native.base_isa(isa)) or kernel


def choose_linear_kernel(storage: str, accuracy: Accuracy, isa: str, layout: str | None = None) -> Choice:
    """The kernel for weights stored as ``storage``: the first of the registry that fits ``accuracy`` and ``isa``.

    With ``layout`` the first that reads weights packed so. Raises :class:`KernelUnavailable` if none fits.
    """
    weights, _, _ = _native.packed_format(storage)
    refused: list[tuple[str, str]] = []
    available = _native.available_isas()
    for kernel in linear_kernels():
        if kernel.weights != weights:
            continue
        reason = _refusal(kernel, accuracy, isa, available)
        if reason is None and not _native.can_pack(storage, kernel.layout):
            reason = f"{kernel.layout} has no room for blocks as small as those of {storage}"
        if reason is None and layout not in (None, kernel.layout):
            reason = f"another linear of these weights needs them as {layout}"
        if reason is None:
            return Choice(kernel, tuple(refused))
        refused.append((kernel.name, reason))
    raise KernelUnavailable(f"no kernel of this build reads {weights} weights on {isa}")


def _refusal(kernel: LinearKernel, accuracy: Accuracy, isa: str, available: list[str]) -> str | None:
    if kernel.isa not in (isa, _native.base_isa(isa)):
        return f"NYBBLE_ISA={isa}" if kernel.isa in available else f"this CPU has no {kernel.isa}"
    if kernel.activations == "int8" and accuracy is Accuracy.F32:
        return "rounds activations to int8; f32 is asked for"
    return None
