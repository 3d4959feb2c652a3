"""The state of the walk through an ONNX graph: what each value is, and the ops written so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...errors import UnsupportedFeature
from ...formats.onnx_model import OnnxModel, OnnxNode, OnnxTensor, ValueInfo
from ...graph.ops import Op
from ...quant.tensor import Tensor
from ..config import LARGEST_HEAD, MOST_HEADS
from .elements import ElementTable, Numbers, Rows
from .movement import DoesNotFit
from .values import PAST_TOKENS, Array, Cache, Deferred, Elements, Known, Tokens, Value, Weight
from .weights import float_tensor

SMALL_WEIGHT = 1 << 12
"""Elements up to which an initialiser may be an argument: a shape, an axis, a constant of a mask."""


class Walk:
    """What is known so far. Handlers of nodes read operands here, append ``ops`` and return what the outputs are."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.file = str(model.path)
        self.ops: list[Op] = []
        self.tensors: dict[str, Tensor] = {}
        self.table = ElementTable()
        self.values: dict[str, Value] = {}
        self.labels: set[str] = set()
        self.caches: dict[str, Numbers] = {}
        """The graph's inputs that are caches: the numbers of their elements, (1, KV heads, PAST_TOKENS, head_dim)."""
        self.layers: list[tuple[str, str]] = []
        """The caches of keys and values of each attention so far."""
        self.heads: tuple[int, int] | None = None
        """KV heads and features of a head, the same in all layers."""
        self.rotations: set[tuple[str, str]] = set()
        """Initialisers that hold cosines and sines."""
        self.levels: Counter[int] = Counter()
        """How many MatMulNBits nodes have each accuracy_level; 0 stands for none."""
        self.masks: list[str] = []
        """Values that are added to attention scores."""
        self._matrices: dict[tuple[str, bool], Tensor] = {}
        self.uses = Counter(name for node in model.nodes for name in node.inputs if name)
        self.uses.update(value.name for value in model.outputs)
        for name, tensor in model.initializers.items():
            self.values[name] = Weight(tensor)

    def refuse(self, node: OnnxNode, reason: str) -> UnsupportedFeature:
        """The error for the first node that is not part of a decoder nybble knows."""
        return UnsupportedFeature(f"{self.file}: {node} does not fit into a decoder that nybble runs: {reason}")

    def operand(self, node: OnnxNode, place: int) -> Value | None:
        """The ``place``-th input of ``node``; None if it is left out."""
        if place >= len(node.inputs) or not node.inputs[place]:
            return None
        name = node.inputs[place]
        if name not in self.values:
            raise DoesNotFit(f"it reads {name!r}, which no input, initialiser or earlier node is")
        return self.values[name]

    def elements(self, node: OnnxNode, place: int) -> Elements:
        """An operand that must be an activation."""
        value = self.operand(node, place)
        if not isinstance(value, Elements):
            raise DoesNotFit(f"its input {place} is {described(value)}; expected an activation")
        return value

    def rows(self, node: OnnxNode, place: int) -> Rows:
        """An operand that must be whole rows of an activation, in order."""
        return self.rows_of(self.elements(node, place))

    def rows_of(self, elements: Elements) -> Rows:
        """The rows that ``elements`` are."""
        rows = self.table.rows(elements.numbers)
        if rows is None:
            raise DoesNotFit("its input is an activation whose elements were moved out of their order")
        return rows

    def weight(self, node: OnnxNode, place: int) -> OnnxTensor:
        """An operand that must be an initialiser as it lies in the file."""
        value = self.operand(node, place)
        if not isinstance(value, Weight) or value.transposed:
            raise DoesNotFit(f"its input {place} is {described(value)}; expected an initialiser")
        return value.tensor

    def optional_weight(self, node: OnnxNode, place: int) -> OnnxTensor | None:
        """As :meth:`weight`; None if it is left out."""
        return None if self.operand(node, place) is None else self.weight(node, place)

    def known(self, node: OnnxNode, place: int) -> Array:
        """An operand that must follow from lengths, masks and positions, or be a small constant."""
        value = as_known(self.operand(node, place))
        if value is None and isinstance(deferred := self.operand(node, place), Deferred):
            raise DoesNotFit(deferred.reason)
        if value is None:
            raise DoesNotFit(f"its input {place} is {described(self.operand(node, place))}; expected a constant")
        return value

    def scalar(self, node: OnnxNode, place: int) -> float:
        """An operand that must be one constant number."""
        value = self.known(node, place)
        if value.size != 1:
            raise DoesNotFit(f"its input {place} has {value.size} numbers; expected one")
        return float(value.reshape(()))

    def float_matrix(self, source: OnnxTensor, *, transposed: bool) -> Tensor:
        """A matrix of floats as it lies or transposed, which copies; a matrix that is used twice is copied once."""
        key = (source.name, transposed)
        if key not in self._matrices:
            self._matrices[key] = float_tensor(source, transposed)
        return self._matrices[key]

    def take(self, tensor: Tensor) -> str:
        """Put a weight into the graph and return its name; the same bytes read in the same way are one weight."""
        name, number = tensor.name, 1
        while name in self.tensors and not _same(self.tensors[name], tensor):
            number += 1
            name = f"{tensor.name} ({number})"
        self.tensors.setdefault(name, tensor if name == tensor.name else _renamed(tensor, name))
        return name

    def declare_cache(self, value: ValueInfo, head_dim: int | None) -> None:
        """Make an input of the graph a cache of (batch, KV heads, tokens, features)."""
        shape = value.shape or ()
        heads, features = shape[1], shape[3] if shape[3] is not None else head_dim
        if heads is None or features is None or not (1 <= heads <= MOST_HEADS and 1 <= features <= LARGEST_HEAD):
            raise UnsupportedFeature(
                f"{self.file}: the graph's input {value.name!r} has the shape {shape}; expected a cache with a fixed "
                "number of heads and features"
            )
        numbers = self.table.reserve(value.name, heads * PAST_TOKENS * features)
        self.caches[value.name] = numbers.reshape(1, heads, PAST_TOKENS, features)
        self.values[value.name] = Elements(self.caches[value.name])

    def add_layer(self, caches: tuple[str, str], kv_heads: int, head_dim: int) -> int:
        """The number of the layer of an attention over ``caches``, which no other may have."""
        if caches[0] == caches[1] or any(set(caches) & set(layer) for layer in self.layers):
            raise DoesNotFit("its cache is that of another attention")
        for name in caches:
            expected = (1, kv_heads, PAST_TOKENS, head_dim)
            if self.caches[name].shape != expected:
                raise DoesNotFit(f"its cache has the shape {self.caches[name].shape}; expected {expected}")
        if self.heads not in (None, (kv_heads, head_dim)):
            raise DoesNotFit(f"it has {kv_heads} KV heads of {head_dim}, the layers before {self.heads}")
        self.heads = (kv_heads, head_dim)
        self.layers.append(caches)
        return len(self.layers) - 1

    def label(self, node: OnnxNode, part: str = "") -> str:
        """A label for an op of ``node`` that no other op has."""
        name = node.name if node.name and node.name.isprintable() else node.op_type
        label = f"{name} · {part}" if part else name
        number = 1
        while label in self.labels:
            number += 1
            label = f"{name} {number} · {part}" if part else f"{name} {number}"
        self.labels.add(label)
        return label

    def write(
        self, node: OnnxNode, width: int, shape: Sequence[int], rows: Rows, part: str = ""
    ) -> tuple[str, Elements]:
        """Declare the buffer of an op that works row by row on ``rows``: its name, and its elements in ``shape``."""
        name = f"{node.outputs[0]}{f'.{part}' if part else ''}"
        number = 1
        while name in self.table.buffers:
            number += 1
            name = f"{node.outputs[0]}{f'.{part}' if part else ''} {number}"
        return name, self.table.write(name, width, tuple(shape), only_last=rows.only_last)

    def used_once(self, name: str) -> bool:
        """Whether one node reads the value, and nothing else."""
        return self.uses[name] == 1


def as_known(value: Value | None) -> Array | None:
    """The array that ``value`` is for certain, or None: small initialisers count."""
    if isinstance(value, Known):
        return value.array
    if isinstance(value, Weight) and value.tensor.data_type.bits >= 8 and value.tensor.elements <= SMALL_WEIGHT:
        array = value.tensor.array()
        return array.T if value.transposed else array
    return None


def shape_of(value: Value | None) -> tuple[int, ...] | None:
    """The shape of ``value`` in the step that is followed, if it is known."""
    match value:
        case Known():
            return value.array.shape
        case Tokens() | Cache():
            return value.shape
        case Elements():
            return value.numbers.shape
        case Weight():
            return value.tensor.shape[::-1] if value.transposed else value.tensor.shape
    return None


def described(value: Value | None) -> str:
    """What ``value`` is, for errors."""
    names: Mapping[type, str] = {
        Known: "a constant, or computed from lengths and masks",
        Tokens: "the token ids",
        Elements: "an activation",
        Cache: "a cache of keys or values",
        Weight: "an initialiser",
    }
    if value is None:
        return "left out"
    return names.get(type(value), "part of a formula")


def _same(left: Tensor, right: Tensor) -> bool:
    return (
        left.storage == right.storage
        and left.shape == right.shape
        and all(
            one.__array_interface__["data"][0] == other.__array_interface__["data"][0] or np.array_equal(one, other)
            for one, other in zip(left.arrays, right.arrays, strict=True)
        )
    )


def _renamed(tensor: Tensor, name: str) -> Tensor:
    return replace(tensor, name=name)
