"""Models of one MatMulNBits node, and what they mean in fp64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

GROUP = 256
"""Activations are rounded in groups of K that divide this."""


@dataclass(frozen=True)
class Node:
    """A node and its weights: codes (n, k), scales and zero points (n, blocks), bias (n,)."""

    k: int
    n: int
    bits: int = 4
    block: int = 32
    zero_points: str = "absent"
    has_bias: bool = False
    dtype: type = np.float32
    accuracy_level: int | None = 4
    domain: str = "com.microsoft"
    seed: int = 0

    def on_custom_op(self) -> Node:
        return replace(self, domain="nybble")

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    def codes(self) -> NDArray[np.uint8]:
        """Padding behind k included: codes of any value."""
        shape = (self.n, self.blocks * self.block)
        return np.random.default_rng(self.seed).integers(0, 1 << self.bits, shape, dtype=np.uint8)

    def scales(self) -> NDArray[Any]:
        random = np.random.default_rng(self.seed + 1)
        return (0.02 * random.standard_normal((self.n, self.blocks))).astype(self.dtype)

    def zero_point_values(self) -> NDArray[Any]:
        middle = 1 << (self.bits - 1)
        random = np.random.default_rng(self.seed + 2)
        if self.zero_points == "packed":
            return random.integers(0, 2 * middle, (self.n, self.blocks), dtype=np.uint8)
        if self.zero_points == "floats":
            return (middle + random.standard_normal((self.n, self.blocks))).astype(self.dtype)
        return np.full((self.n, self.blocks), middle, np.uint8)

    def bias(self) -> NDArray[Any]:
        values = np.random.default_rng(self.seed + 3).standard_normal(self.n).astype(self.dtype)
        return values if self.has_bias else np.zeros(self.n, self.dtype)

    def activations(self, *shape: int) -> NDArray[Any]:
        """Of ``shape`` and k."""
        return np.random.default_rng(self.seed + 4).standard_normal((*shape, self.k)).astype(self.dtype)

    def weights(self) -> NDArray[np.float64]:
        def repeated(values: NDArray[Any]) -> NDArray[np.float64]:
            return np.repeat(values.astype(np.float64), self.block, axis=1)[:, : self.k]

        return repeated(self.scales()) * (self.codes()[:, : self.k] - repeated(self.zero_point_values()))

    def expected(self, activations: NDArray[Any]) -> NDArray[np.float64]:
        return activations.astype(np.float64) @ self.weights().T + self.bias()

    def bound(self, activations: NDArray[Any]) -> NDArray[np.float64]:
        """The most by which a result may differ from the expected one.

        Activations within half of 1/127 of the largest of their group, scales and offsets (scale · zero point) within
        2^-11, sums within one fp32 rounding each, and fp16 results within one of those.
        """
        x = np.abs(activations.astype(np.float64))
        padded = np.zeros((*x.shape[:-1], -(-self.k // GROUP) * GROUP))
        padded[..., : self.k] = x
        largest = padded.reshape(*x.shape[:-1], -1, GROUP).max(axis=-1)
        steps = np.repeat(largest / 127, GROUP, axis=-1)[..., : self.k]
        if self.accuracy_level not in (None, 0, 4):
            steps = np.zeros_like(steps)
        scales, zero_points = (
            np.repeat(np.abs(values.astype(np.float64)), self.block, axis=1)[:, : self.k]
            for values in (self.scales(), self.zero_point_values())
        )
        parts = scales * (self.codes()[:, : self.k] + zero_points)
        rounding = (x @ parts.T) * (2.0**-11 * 1.01 + self.k * 2.0**-23)
        bound = rounding + 0.5 * (steps @ np.abs(self.weights()).T) * 1.01 + 1e-6
        if self.dtype is np.float16:
            bound += 2.0**-10 * (np.abs(self.expected(activations)) + bound)
        return bound

    def model(self, **changes: NDArray[Any] | None) -> bytes:
        """The serialised model; ``changes`` replace inputs by name, None leaves them out."""
        inputs: dict[str, NDArray[Any] | None] = {
            "B": pack(self.codes(), self.bits).reshape(self.n, self.blocks, -1),
            "scales": self.scales(),
            "zero_points": self._stored_zero_points(),
            "g_idx": None,
            "bias": self.bias() if self.has_bias else None,
        } | changes
        names = ["A", *(name if values is not None else "" for name, values in inputs.items())]
        while names[-1] == "":
            names.pop()
        attributes = {"K": self.k, "N": self.n, "bits": self.bits, "block_size": self.block}
        if self.accuracy_level is not None:
            attributes["accuracy_level"] = self.accuracy_level
        node = helper.make_node("MatMulNBits", names, ["Y"], name="the_node", domain=self.domain, **attributes)
        kind = TensorProto.FLOAT16 if self.dtype is np.float16 else TensorProto.FLOAT
        graph = helper.make_graph(
            [node],
            "graph",
            [helper.make_tensor_value_info("A", kind, None)],
            [helper.make_tensor_value_info("Y", kind, None)],
            [numpy_helper.from_array(values, name) for name, values in inputs.items() if values is not None],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(self.domain, 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 9
        return model.SerializeToString()

    def _stored_zero_points(self) -> NDArray[Any] | None:
        if self.zero_points == "absent":
            return None
        values = self.zero_point_values()
        return pack(values, self.bits).reshape(-1) if self.zero_points == "packed" else values.reshape(-1)


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Rows of codes, the earlier in the lower bits, each row padded to a byte."""
    per_byte = 8 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per_byte)))
    parts = padded.reshape(codes.shape[0], -1, per_byte).astype(np.uint32) << (bits * np.arange(per_byte))
    return parts.sum(axis=-1).astype(np.uint8)
