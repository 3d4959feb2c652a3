"""ONNX models inspected: what their nodes say, whether or not nybble could run them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..formats.onnx_accuracy_level import INT8_LEVEL, PATCH_COMMAND
from ..formats.onnx_model import MICROSOFT, DataType, OnnxModel, OnnxNode, OnnxTensor
from .inspection import Finding, Inspection, LinearKind
from .weights import FETCH_AGAIN, check_floats, check_numbers, in_groups, in_kinds

GATHER_QUANTIZED = f"{MICROSOFT}::GatherBlockQuantized"
QUANTISE_AGAIN = "quantise the model again with blocks of 32 or 128"
FLOAT_LEVEL = (
    "nybble patch IN.onnx OUT.onnx --accuracy-level 1 for the linears behind it; nybble keeps outliers in fp32"
)
# Ops between a linear and the logits that change neither their number nor their order.
TRANSPARENT = ("Cast", "Mul", "Div", "Tanh", "Identity", "Squeeze", "Unsqueeze", "Add")

# Inputs that hold the tables of rotary embeddings.
ROTATIONS = {f"{MICROSOFT}::GroupQueryAttention": slice(7, 9), f"{MICROSOFT}::RotaryEmbedding": slice(2, 4)}
# Ops between stored weights and what uses them that change no weight.
MOVING = ("Transpose", "Reshape", "Cast", "Identity")


def inspect_onnx(model: OnnxModel, architecture: str) -> Inspection:
    """What the ONNX model holds. Reads scales, and the weights of tensors that have none."""
    return _Inspector(model).inspect(architecture)


class _Inspector:
    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.tensors = dict(model.initializers)
        for node in model.nodes:
            value = node.attributes.get("value")
            if node.op_type == "Constant" and isinstance(value, OnnxTensor) and node.outputs:
                self.tensors[node.outputs[0]] = replace(value, name=node.outputs[0])
        self.writers = {name: node for node in model.nodes for name in node.outputs if name}

    def inspect(self, architecture: str) -> Inspection:
        linears = [linear for node in self.model.nodes if (linear := self._linear(node)) is not None]
        head = self._head()
        gather = self._embedding()
        findings = [*self._about_levels(), *self._about_blocks(), *self._about_numbers()]
        if head is None:
            reason = "no linear computes an output called logits; the model yields hidden states"
            mend = "export it again with its head (without exclude_lm_head)"
            findings.append(Finding("missing head", self.model.path.name, reason, mend))
        findings += self._about_width(gather)
        parameters = self._parameters()
        stored = sum(tensor.octets.nbytes for tensor in self.tensors.values())
        return Inspection(
            path=self.model.path,
            format="ONNX",
            architecture=architecture,
            parameters=parameters,
            file_bytes=self.model.file_bytes,
            bits_per_weight=8 * stored / max(parameters, 1),
            metadata={
                **self.model.metadata,
                **{f"opset {domain or 'ai.onnx'}": str(version) for domain, version in self.model.opsets.items()},
            },
            linears=in_kinds(linears),
            embedding="none" if gather is None else self._described(gather),
            tied=None if head is None or gather is None else self._is_tied(head, gather),
            findings=in_groups(findings),
        )

    def _tensor(self, node: OnnxNode, place: int) -> OnnxTensor | None:
        return self.tensors.get(node.inputs[place]) if place < len(node.inputs) else None

    def _called(self, node: OnnxNode) -> str:
        """The node's name; exporters that give none name the weights."""
        return node.name or next((name for name in node.inputs if name in self.tensors), str(node))

    def _linear(self, node: OnnxNode) -> LinearKind | None:
        if node.is_mat_mul_n_bits:
            scales = self._tensor(node, 2)
            return LinearKind(
                name=self._called(node),
                count=1,
                features=_whole(node, "K", 0),
                outputs=_whole(node, "N", 0),
                storage=f"MatMulNBits, {scales.data_type.name if scales else '?'} scales",
                bits=_whole(node, "bits", 4),
                block=_whole(node, "block_size", 0),
                zero_points=self._zero_points(node),
                accuracy_level=_whole(node, "accuracy_level", 0),
            )
        if node.operator not in ("MatMul", "Gemm"):
            return None
        weight, turns = self._moved(node.inputs[1] if len(node.inputs) > 1 else "")
        if weight is not None and len(weight.shape) == 2:
            turned = (turns + _whole(node, "transB", 0)) % 2
            features, outputs = weight.shape[::-1] if turned else weight.shape
            return LinearKind(
                self._called(node), 1, features, outputs, weight.data_type.name, weight.data_type.bits, None, "none"
            )
        return self._dequantised(node)

    def _dequantised(self, node: OnnxNode) -> LinearKind | None:
        """A MatMul of what ``DequantizeLinear`` makes of codes."""
        writer = self.writers.get(node.inputs[1]) if len(node.inputs) > 1 else None
        while writer is not None and writer.op_type == "Transpose" and writer.inputs:
            writer = self.writers.get(writer.inputs[0])
        if writer is None or writer.op_type != "DequantizeLinear":
            return None
        codes = self._tensor(writer, 0)
        if codes is None or len(codes.shape) != 2:
            return None
        symmetric = len(writer.inputs) < 3 or not writer.inputs[2]
        return LinearKind(
            name=self._called(node),
            count=1,
            features=codes.shape[0],
            outputs=codes.shape[1],
            storage=f"DequantizeLinear {codes.data_type.name}",
            bits=codes.data_type.bits,
            block=_whole(writer, "block_size", 0) or None,
            zero_points="symmetric" if symmetric else "packed",
        )

    def _zero_points(self, node: OnnxNode) -> str:
        zero_points = self._tensor(node, 3)
        if zero_points is None:
            return "symmetric"
        return "packed" if zero_points.data_type is DataType.UINT8 else zero_points.data_type.name

    def _head(self) -> OnnxNode | None:
        names = [value.name for value in self.model.outputs if "logits" in value.name]
        seen: set[str] = set()
        while names:
            name = names.pop()
            node = self.writers.get(name)
            if node is None or name in seen:
                continue
            seen.add(name)
            if node.is_mat_mul_n_bits or node.operator in ("MatMul", "Gemm"):
                return node
            if node.op_type in TRANSPARENT:
                names += [inner for inner in node.inputs if inner not in self.tensors]
        return None

    def _table(self, gather: OnnxNode) -> OnnxTensor | None:
        """The weights that an embedding takes rows of, perhaps by way of another shape."""
        return self._moved(gather.inputs[0] if gather.inputs else "")[0]

    def _moved(self, name: str) -> tuple[OnnxTensor | None, int]:
        """The weights behind the value ``name``, and how often they are transposed on the way."""
        turns = 0
        while (writer := self.writers.get(name)) is not None and writer.op_type in MOVING and writer.inputs:
            turns += writer.op_type == "Transpose"
            name = writer.inputs[0]
        return self.tensors.get(name), turns

    def _embedding(self) -> OnnxNode | None:
        for node in self.model.nodes:
            table = self._table(node)
            tokens = len(node.inputs) > 1 and "input_ids" in node.inputs[1]
            if node.operator in ("Gather", GATHER_QUANTIZED) and tokens and table is not None and len(table.shape) >= 2:
                return node
        return None

    def _described(self, gather: OnnxNode) -> str:
        table = self._table(gather)
        assert table is not None
        width = f"{table.shape[0]:,} tokens x {self._width(gather):,}"
        if gather.operator == GATHER_QUANTIZED:
            bits, block = _whole(gather, "bits", 4), _whole(gather, "block_size", 128)
            return f"GatherBlockQuantized, {bits} bits, blocks of {block}, {width}"
        return f"Gather, {table.data_type.name}, {width}"

    def _width(self, gather: OnnxNode) -> int:
        """Features of an embedding as the op decodes it; codes of 2 and 4 bits lie several in a byte."""
        table = self._table(gather)
        assert table is not None
        width = math.prod(table.shape[1:])
        if gather.operator == GATHER_QUANTIZED and table.data_type is DataType.UINT8:
            width = width * 8 // max(_whole(gather, "bits", 4), 1)
        return width

    def _is_tied(self, head: OnnxNode, gather: OnnxNode) -> bool:
        table = self._table(gather)
        names, waiting = set(), [*head.inputs[1:2]]
        while waiting:
            name = waiting.pop()
            names.add(name)
            writer = self.writers.get(name)
            if writer is not None and writer.op_type in (*MOVING, "DequantizeLinear"):
                waiting += writer.inputs[:1]
        weights = [self.tensors[name] for name in names if name in self.tensors]
        return table is not None and any(
            table.name == weight.name or np.shares_memory(table.octets, weight.octets) for weight in weights
        )

    def _quantised(self) -> Iterator[OnnxNode]:
        return (node for node in self.model.nodes if node.is_mat_mul_n_bits)

    def _about_levels(self) -> Iterator[Finding]:
        """One for each level: what mends one node mends all."""
        low: dict[str, list[OnnxNode]] = {}
        for node in self._quantised():
            level = _whole(node, "accuracy_level", 0)
            if level < INT8_LEVEL:
                said = f"accuracy_level is {level}" if "accuracy_level" in node.attributes else "no accuracy_level"
                low.setdefault(said, []).append(node)
        for said, nodes in low.items():
            others = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
            reason = f"{said}: ONNX Runtime multiplies in fp32, several times slower than with int8 activations"
            yield Finding("low accuracy_level", f"{self._called(nodes[0])}{others}", reason, PATCH_COMMAND)

    def _about_blocks(self) -> Iterator[Finding]:
        for node in self._quantised():
            block = _whole(node, "block_size", 0)
            if block < 16 or block & (block - 1) or block > 256:
                reason = f"blocks of {block}; fast kernels take 16, 32, 64, 128 and 256"
                yield Finding("slow block size", self._called(node), reason, QUANTISE_AGAIN)

    def _about_width(self, gather: OnnxNode | None) -> Iterator[Finding]:
        """The codes of a shared table are read with the embedding's bits: those of an int8 file as 4-bit ones."""
        widths = {_whole(node, "K", 0) for node in self._quantised()}
        if gather is None or not widths or gather.operator != GATHER_QUANTIZED:
            return
        width = self._width(gather)
        if width not in widths and (width // 2 in widths or 2 * width in widths):
            expected = width // 2 if width // 2 in widths else 2 * width
            reason = (
                f"it yields {width} features, the linears take {expected}: its codes are read with "
                f"{_whole(gather, 'bits', 4)} bits, and were written with another number"
            )
            yield Finding("embedding of another width", self._called(gather), reason, "export the model again")

    def _about_numbers(self) -> Iterator[Finding]:
        codes = {node.inputs[1] for node in self._quantised() if len(node.inputs) > 1}
        of_embedding = {node.inputs[0] for node in self.model.nodes if node.operator == GATHER_QUANTIZED}
        for node in self._quantised():
            yield from self._about_codes(node)
        for name, tensor in self.tensors.items():
            values = _floats(tensor)
            if values is None or name in codes or name in of_embedding or tensor.elements < 2:
                continue
            if "scale" in name:
                yield from check_numbers(name, values, "scales")
            elif "cache" not in name and "mask" not in name:
                yield from check_floats(name, values, len(tensor.shape), FLOAT_LEVEL)

    def _about_codes(self, node: OnnxNode) -> Iterator[Finding]:
        """Weights are all zero when every code is its zero point; symmetric ones tell by a look at the bytes."""
        codes, bits = self._tensor(node, 1), _whole(node, "bits", 4)
        if codes is None or self._tensor(node, 3) is not None or not codes.octets.size or bits not in (2, 4, 8):
            return
        zero = {2: 0xAA, 4: 0x88, 8: 0x80}[bits]
        if codes.octets[0] == zero and bool((codes.octets == zero).all()):
            yield Finding(
                "all zero", self._called(node), "each code is the zero point; it computes nothing", FETCH_AGAIN
            )

    def _parameters(self) -> int:
        """Weights: of quantised ops what their sizes say, of other tensors of two dimensions or one their elements."""
        count, counted = 0, set()
        for node in self.model.nodes:
            if node.is_mat_mul_n_bits and len(node.inputs) > 2:
                if node.inputs[1] not in counted:
                    count += _whole(node, "K", 0) * _whole(node, "N", 0)
                counted |= {*node.inputs[1:4]}
            elif node.operator == GATHER_QUANTIZED and (table := self._table(node)) is not None:
                if table.name not in counted:
                    count += table.shape[0] * self._width(node)
                counted |= {table.name, *node.inputs[2:4]}
            elif node.op_type == "DequantizeLinear":
                counted |= {*node.inputs[1:3]}
            else:  # cosines and sines
                counted |= {*node.inputs[ROTATIONS.get(node.operator, slice(0))]}
        rest = [tensor for name, tensor in self.tensors.items() if name not in counted]
        return count + sum(tensor.elements for tensor in rest if tensor.data_type is not DataType.INT64)


def _whole(node: OnnxNode, name: str, missing: int) -> int:
    value = node.attributes.get(name, missing)
    return value if isinstance(value, int) else missing


def _floats(tensor: OnnxTensor) -> NDArray[np.generic] | None:
    return tensor.array() if tensor.data_type.is_float else None
