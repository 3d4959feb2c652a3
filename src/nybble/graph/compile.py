"""From a plan to a native program: packs the weights and writes down the ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import ModelFileError
from ..quant.blocks import dequantise
from ..quant.quantise import quantised
from .ops import (
    Add,
    Attention,
    Embed,
    KVAppend,
    Linear,
    Op,
    Quantise,
    RMSNorm,
    Rope,
    RotateAppend,
    SelectOutputs,
    SwiGLU,
)
from .plan import Plan, Weights
from .recording import ProgramRecorder
from .slots import assign_slots


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A native program, the packed matrices it reads, the memory these lie in, and what the program was told."""

    program: _native.Program
    matrices: dict[Weights, _native.PackedMatrix]
    memory: _native.WeightMemory
    recording: ProgramRecorder


def compile_plan(
    plan: Plan,
    threads: _native.ThreadPool,
    release: Callable[[], None] = lambda: None,
    progress: Callable[[int], None] = lambda packed_bytes: None,
    isas: Sequence[str] | None = None,
) -> CompiledModel:
    """Pack the weights of ``plan`` and build its program, to run on ``threads``, all on its instruction set or each on
    one of ``isas``.

    ``release`` is called whenever tensors have been read, so that the file's pages can be given back; ``progress`` with
    the bytes of each packed matrix. Raises :class:`ModelFileError` for a scale that is not finite, MemoryError.
    """
    memory = _native.WeightMemory(plan.weight_bytes)
    matrices = pack_matrices(plan, memory, threads, release, progress)
    graph = plan.graph
    program = _native.Program(
        threads,
        [plan.isa] * threads.size if isas is None else isas,
        graph.vocabulary,
        graph.layers,
        graph.kv_heads,
        graph.head_dim,
        graph.inverse_frequencies.tolist(),
    )
    recorder = ProgramRecorder(program, list(matrices.values()))
    writer = _ProgramWriter(plan, cast(_native.Program, recorder), matrices)
    for op in graph.ops:
        writer.write(op)
        release()  # a small norm weight maps megabytes of the file around it
    writer.program.set_logits(writer.views[graph.logits])
    return CompiledModel(program, matrices, memory, recorder)


def pack_matrices(
    plan: Plan,
    memory: _native.WeightMemory,
    threads: _native.ThreadPool,
    release: Callable[[], None],
    progress: Callable[[int], None],
) -> dict[Weights, _native.PackedMatrix]:
    """Pack every stack of weights of ``plan`` into ``memory``, in the order a step reads them."""
    packed: dict[Weights, _native.PackedMatrix] = {}
    for stack, planned in plan.matrices.items():
        tensors = [quantised(plan.graph.tensors[name]) for name in stack]
        parts = [(tensor.storage.name, tensor.arrays) for tensor in tensors]
        form = (planned.wide_scales, planned.layout)
        packed[stack], not_finite = _native.pack(memory, planned.offset, parts, planned.k, threads, *form)
        if not_finite is not None:
            part, row = not_finite
            raise ModelFileError(
                tensors[part].file,
                f"{tensors[part].name} row {row}",
                "a block's scale or offset is not finite; expected at most 65504 (fp16)",
            )
        release()
        progress(planned.bytes)
    return packed


class _ProgramWriter:
    """Writes ops to a native program; knows where each buffer lies."""

    def __init__(self, plan: Plan, program: _native.Program, matrices: dict[Weights, _native.PackedMatrix]) -> None:
        self.plan = plan
        self.program = program
        self.matrices = matrices
        slots = assign_slots(plan.graph)
        native = [program.slot(shape.width, shape.per_output, shape.block, shape.layout) for shape in slots.shapes]
        self.views = {
            name: program.view(native[slots.slot_of[buffer.parent or name]], buffer.offset, buffer.width)
            for name, buffer in plan.graph.buffers.items()
        }

    def vector(self, name: str | None) -> NDArray[np.float32] | None:
        return None if name is None else np.ascontiguousarray(dequantise(self.plan.graph.tensors[name])).reshape(-1)

    def write(self, op: Op) -> None:
        program, view = self.program, self.views
        match op:
            case Embed():
                program.embed(op.label, self.matrices[(op.table,)], view[op.output])
            case RMSNorm():
                weight = dequantise(self.plan.graph.tensors[op.weight]).reshape(-1)
                program.rms_norm(op.label, view[op.input], weight, view[op.output], op.epsilon)
            case Linear():
                self.linear(op)
            case RotateAppend():
                inputs = (view[op.query], view[op.key], view[op.value])
                norms = (self.vector(op.query_norm), self.vector(op.key_norm))
                program.rotate_append(op.label, op.layer, *inputs, view[op.output], *norms, op.epsilon)
            case Attention():
                program.attention(op.label, op.layer, view[op.query], view[op.output], op.heads, op.scale)
            case SwiGLU():
                program.swiglu(op.label, view[op.gate], view[op.up], view[op.output])
            case Add():
                program.add(op.label, view[op.left], view[op.right], view[op.output])
            case SelectOutputs():
                program.select_outputs(op.label, view[op.input], view[op.output])
            case Quantise():
                program.quantise(op.label, view[op.input], view[op.output])
            case Rope() | KVAppend():
                raise AssertionError(f"{op.label}: plan() refuses this op")

    def linear(self, op: Linear) -> None:
        biases = [dequantise(self.plan.graph.tensors[name]).reshape(-1) for name in op.biases]
        self.program.linear(
            op.label,
            self.views[op.input],
            self.matrices[op.weights],
            self.plan.choices[op.label].kernel.name,
            self.views[op.output],
            np.concatenate(biases) if biases else None,
            None if op.residual is None else self.views[op.residual],
        )
