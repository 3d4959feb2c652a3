"""What loading a model would make of each tensor, and why; nothing is packed for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .. import _native
from ..formats.checkpoint import Checkpoint
from ..graph.dispatch import Accuracy, Choice
from ..graph.graph import tensors_read
from ..graph.kv_type import KVType
from ..graph.ops import Embed, Linear, Op, RotateAppend
from ..graph.plan import PackedPlan, Plan
from ..quant.error import ConversionError, conversion_error, is_changed
from ..quant.tensor import Tensor
from .loading import LONGEST_DEFAULT_CONTEXT
from .memory import MemoryNeeded, memory_needed
from .session import STEP_TOKENS

if TYPE_CHECKING:
    from ..hub.progress import Progress

FLOAT_BYTES = 4
"""Norms and biases are kept as fp32."""


@dataclass(frozen=True, slots=True)
class TensorExplanation:
    """One tensor of the file.

    ``stored`` is its type there, ``packed`` what the kernel reads (``W4B32 asymmetric``: 4-bit codes, blocks of 32
    along K, with offsets), ``kernel`` what reads it, and ``why`` the reason each better kernel was refused.
    ``bytes_per_token`` are the packed bytes a decode step reads. ``error`` is None where packing changes no weight.
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    stored_bytes: int
    packed: str
    kernel: str
    why: str
    used_by: tuple[str, ...]
    bytes_per_token: int
    error: ConversionError | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """All tensors of a model: linears in the order a step computes them, then the others.

    ``memory`` is what loading takes with the default context. Bits per weight are those of the matrices.
    """

    path: Path
    architecture: str
    isa: str
    accuracy: Accuracy
    kv: KVType
    tensors: tuple[TensorExplanation, ...]
    memory: MemoryNeeded
    stored_bits_per_weight: float
    packed_bits_per_weight: float

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that a decode step reads."""
        return sum(tensor.bytes_per_token for tensor in self.tensors)


def staging_refusals(plan: Plan, pool: _native.ThreadPool) -> dict[str, str]:
    """By label of each linear, why a single row does not take its weights through the tightly coupled memory of
    ``pool``; empty if it does. None at all where the pool has no such memory.
    """
    if not pool.staging_bytes:
        return {}
    refusals: dict[str, str] = {}
    for op in plan.graph.ops:
        if isinstance(op, Linear):
            matrix = plan.matrices[op.weights]
            rounded = plan.choices[op.label].kernel.activations == "int8"
            refusal = pool.staging_refusal(matrix.n, matrix.k, matrix.bytes) if rounded else "its activations stay fp32"
            refusals[op.label] = refusal
    return refusals


def explain(checkpoint: Checkpoint, plan: Plan, kv: KVType, progress: Progress | None = None) -> Explanation:
    """What loading makes of ``checkpoint`` when it follows ``plan``, given by :func:`~nybble.engine.loading.plan_file`.

    ``progress`` is told about the measuring of conversion errors, which reads every tensor that packing changes.
    """
    errors = _conversion_errors(checkpoint, plan, progress)
    uses = _uses(plan)
    tensors = [_explain_tensor(plan.graph.tensors[name], use, errors.get(name)) for name, use in uses.items()]
    tensors += [_explain_unused(tensor) for name, tensor in checkpoint.tensors.items() if name not in uses]
    matrices = plan.matrices.values()
    weights = sum(matrix.n * matrix.k for matrix in matrices)
    stored = sum(plan.graph.tensors[name].stored_bytes for matrix in matrices for name in matrix.tensors)
    context = min(plan.graph.context_length, LONGEST_DEFAULT_CONTEXT)
    return Explanation(
        path=checkpoint.path,
        architecture=checkpoint.architecture,
        isa=plan.isa,
        accuracy=plan.accuracy,
        kv=kv,
        tensors=tuple(tensors),
        memory=memory_needed(plan.footprint, context, STEP_TOKENS, kv),
        stored_bits_per_weight=8 * stored / weights,
        packed_bits_per_weight=8 * sum(matrix.bytes for matrix in matrices) / weights,
    )


@dataclass(slots=True)
class _Use:
    """How a step uses a tensor; one that is both embedding and output head has two labels and one kernel."""

    packed: str
    kernel: str
    why: str
    bytes_per_token: int = 0
    labels: list[str] = field(default_factory=list)


def _uses(plan: Plan) -> dict[str, _Use]:
    linears: dict[str, _Use] = {}
    others: dict[str, _Use] = {}
    for op in plan.graph.ops:
        for name, use in _uses_of(op, plan):
            group = linears if isinstance(op, Linear) and name in op.weights else others
            known = group.setdefault(name, use)
            known.bytes_per_token += use.bytes_per_token if known is not use else 0
            known.labels.append(op.label)
    for name in linears.keys() & others.keys():
        linears[name].bytes_per_token += others[name].bytes_per_token
        linears[name].labels[:0] = others.pop(name).labels
    return linears | others


def _uses_of(op: Op, plan: Plan) -> Iterator[tuple[str, _Use]]:
    """The tensors of one op, each with what the op alone makes of it."""
    for name in tensors_read(op):
        if isinstance(op, Linear) and name in op.weights:
            matrix, choice = plan.matrices[op.weights], plan.choices[op.label]
            share = _share(matrix, name, plan)
            yield name, _Use(_packed_name(matrix), choice.kernel.name, _why(choice), share)
        elif isinstance(op, Embed):
            matrix = plan.matrices[(op.table,)]
            why = "decodes the row of one token"
            yield name, _Use(_packed_name(matrix), f"embed_{plan.isa}", why, -(-matrix.bytes // matrix.n))
        else:
            if isinstance(op, Linear):
                kernel, why = plan.choices[op.label].kernel.name, "biases are added in fp32"
            else:
                kernel = f"{'rotate' if isinstance(op, RotateAppend) else 'rms_norm'}_{plan.isa}"
                why = "norms are computed in fp32"
            yield name, _Use("F32", kernel, why, FLOAT_BYTES * plan.graph.tensors[name].elements)


def _share(matrix: PackedPlan, name: str, plan: Plan) -> int:
    """The bytes of a packed matrix that are those of one of its tensors; the shares sum to all of it."""
    before = 0
    for other in matrix.tensors[: matrix.tensors.index(name)]:
        before += plan.graph.tensors[other].shape[0]
    after = before + plan.graph.tensors[name].shape[0]
    return matrix.bytes * after // matrix.n - matrix.bytes * before // matrix.n


def _packed_name(matrix: PackedPlan) -> str:
    if not matrix.weights.startswith("w"):
        return matrix.weights.upper()
    scales = ", fp32 scales" if matrix.wide_scales else ""
    return f"{matrix.weights.upper()}B{matrix.block} {'asymmetric' if matrix.has_offsets else 'symmetric'}{scales}"


def _why(choice: Choice) -> str:
    if not choice.refused:
        return f"the preferred kernel for {choice.kernel.weights} weights"
    return "; ".join(f"not {kernel}: {reason}" for kernel, reason in choice.refused)


def _conversion_errors(checkpoint: Checkpoint, plan: Plan, progress: Progress | None) -> dict[str, ConversionError]:
    changed = [
        plan.graph.tensors[name]
        for matrix in plan.matrices.values()
        for name in matrix.tensors
        if is_changed(plan.graph.tensors[name])
    ]
    total, done = sum(tensor.stored_bytes for tensor in changed), 0
    errors: dict[str, ConversionError] = {}
    for tensor in changed:
        errors[tensor.name] = conversion_error(tensor)
        checkpoint.release()
        done += tensor.stored_bytes
        if progress is not None:
            progress("measuring what packing changes", done, total)
    return errors


def _explain_tensor(tensor: Tensor, use: _Use, error: ConversionError | None) -> TensorExplanation:
    return TensorExplanation(
        name=tensor.name,
        shape=tensor.shape,
        stored=tensor.storage.name,
        stored_bytes=tensor.stored_bytes,
        packed=use.packed,
        kernel=use.kernel,
        why=use.why,
        used_by=tuple(use.labels),
        bytes_per_token=use.bytes_per_token,
        error=error,
    )


def _explain_unused(tensor: Tensor) -> TensorExplanation:
    """A tensor no op reads, such as RoPE's factors; an architecture that knows none refuses the file."""
    use = _Use("not packed", "none", "read while the model is built")
    return _explain_tensor(tensor, use, None)
