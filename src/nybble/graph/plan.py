"""What a graph will become on this machine, before any memory is taken: the lowered graph, kernels and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from .. import _native
from ..errors import UnsupportedFeature
from ..quant.packing_rules import packed_as
from ..quant.tensor import Tensor
from .dispatch import Accuracy, Choice, choose_linear_kernel
from .footprint import Footprint
from .graph import Graph
from .ops import Embed, KVAppend, Linear, Rope
from .passes.lower import lower
from .passes.quantise_activations import Rounding
from .slots import assign_slots

Weights = tuple[str, ...]
"""Names of the tensors stacked in one packed matrix."""

ALIGNMENT = 4096
"""Bytes to which packed matrices are aligned within the weight memory."""


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """One packed matrix to be: ``n`` output channels of ``k``, ``bytes`` of it, at ``offset`` of the weight memory.

    ``wide_scales``: its scales and offsets are fp32.
    """

    tensors: Weights
    n: int
    k: int
    weights: str
    block: int
    has_offsets: bool
    wide_scales: bool
    layout: str
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A lowered graph with a kernel for each linear (by label) and a packed matrix for each stack of weights."""

    graph: Graph
    isa: str
    accuracy: Accuracy
    choices: Mapping[str, Choice]
    matrices: Mapping[Weights, PackedPlan]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed matrices."""
        return sum(_aligned(matrix.bytes) for matrix in self.matrices.values())

    @property
    def footprint(self) -> Footprint:
        """What decides how much memory the model takes."""
        graph = self.graph
        slots = tuple(
            (shape.width, shape.per_output, shape.block, shape.layout) for shape in assign_slots(graph).shapes
        )
        heads = (graph.layers, graph.kv_heads, graph.head_dim)
        return Footprint(self.weight_bytes, *heads, graph.vocabulary, slots)


def plan(graph: Graph, accuracy: Accuracy, isa: str) -> Plan:
    """Lower ``graph`` and choose its kernels.

    Raises :class:`~nybble.errors.KernelUnavailable` for weights no kernel reads, and
    :class:`~nybble.errors.UnsupportedFeature` for a RoPE or KV append that no pass fuses, as native programs need.
    """

    def accuracy_of(linear: Linear) -> Accuracy:
        return Accuracy.F32 if linear.float_activations else accuracy

    def choice_for(linear: Linear, layout: str | None = None) -> Choice:
        storage = graph.tensors[linear.weights[0]].packed_from.name
        return choose_linear_kernel(storage, accuracy_of(linear), isa, layout)

    def rounding_of(linear: Linear) -> Rounding | None:
        kernel = choice_for(linear).kernel
        _, block, _ = _native.packed_format(graph.tensors[linear.weights[0]].packed_from.name)
        return Rounding(block, kernel.layout) if kernel.activations == "int8" else None

    lowered = lower(graph, rounding_of)
    wide = _wide_stacks(lowered, accuracy, lambda linear: rounding_of(linear) is None)
    lowered = _marked(lowered, wide)
    for op in lowered.ops:
        if isinstance(op, Rope | KVAppend):
            raise UnsupportedFeature(f"{op.label}: native programs rotate q and k and append k and v in one op only")
    matrices: dict[Weights, PackedPlan] = {}
    choices: dict[str, Choice] = {}
    offset = 0
    linears = [op for op in lowered.ops if isinstance(op, Linear)]
    # Where linears of both accuracies share weights, those that round their activations choose the layout.
    linears.sort(key=lambda linear: accuracy_of(linear) is Accuracy.INT8)
    layouts = {linear.weights: choice_for(linear).kernel.layout for linear in linears}
    for op in lowered.ops:
        if isinstance(op, Linear):
            stack = op.weights
        elif isinstance(op, Embed):
            stack = (op.table,)
        else:
            continue
        if stack not in matrices:
            tensors = [lowered.tensors[name] for name in stack]
            matrices[stack] = _plan_matrix(tensors, stack in wide, layouts.get(stack, "panel32"), offset)
            offset += _aligned(matrices[stack].bytes)
        if isinstance(op, Linear):
            choices[op.label] = choice_for(op, matrices[stack].layout)
    return Plan(lowered, isa, accuracy, choices, matrices)


def _plan_matrix(tensors: list[Tensor], wide: bool, layout: str, offset: int) -> PackedPlan:
    storage, k = tensors[0].packed_from.name, tensors[0].shape[1]
    n = sum(tensor.shape[0] for tensor in tensors)
    weights, block, has_offsets = _native.packed_format(storage)
    size = _native.packed_bytes(storage, n, k, wide, layout)
    names = tuple(tensor.name for tensor in tensors)
    return PackedPlan(names, n, k, weights, block, has_offsets, wide, layout, size, offset)


def _wide_stacks(graph: Graph, accuracy: Accuracy, has_float_kernel: Callable[[Linear], bool]) -> set[Weights]:
    """Stacks of weights that only fp32 activations meet, and whose scales fp16 would round: they keep fp32 scales.

    An embedding that no linear shares is such if ``accuracy`` says so.
    """
    float_only: dict[Weights, bool] = {}
    for op in graph.ops:
        if isinstance(op, Linear):
            float_only[op.weights] = float_only.get(op.weights, True) and has_float_kernel(op)
    for op in graph.ops:
        if isinstance(op, Embed):
            float_only.setdefault((op.table,), accuracy is Accuracy.F32)
    return {
        stack
        for stack, only in float_only.items()
        if only and not all(packed_as(graph.tensors[name].packed_from).exact for name in stack)
    }


def _marked(graph: Graph, wide: set[Weights]) -> Graph:
    names = {name for stack in wide for name in stack}
    tensors = {name: replace(tensor, wide_scales=name in names) for name, tensor in graph.tensors.items()}
    return replace(graph, tensors=tensors)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
