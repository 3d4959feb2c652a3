"""Graphs small enough to write down, and random ones for sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gguf
import numpy as np
from hypothesis import strategies as st

from nybble.graph.check import check
from nybble.graph.graph import Buffer, Graph
from nybble.graph.ops import Add, Attention, Embed, KVAppend, Linear, Op, RMSNorm, Rope, SwiGLU
from nybble.graph.reference import ReferenceCache, run
from nybble.quant.storage import StorageType
from nybble.quant.tensor import Tensor

HEAD_DIM = 16
KV_HEADS = 2
KEY_WIDTH = HEAD_DIM * KV_HEADS
VOCABULARY = 24


def tensor(name: str, values: np.ndarray, storage: str = "F32") -> Tensor:
    """``values`` stored as ``storage``; rows of quantised types must be whole blocks."""
    values = np.ascontiguousarray(values, np.float32)
    stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType[storage])
    rows = np.ascontiguousarray(stored).view(np.uint8).reshape(values.size // values.shape[-1], -1)
    return Tensor(name, StorageType[storage], values.shape, rows, "small.gguf")


def graph_of(
    ops: Sequence[Op],
    widths: Mapping[str, int | Buffer],
    tensors: Mapping[str, Tensor],
    layers: int = 0,
    logits: str = "logits",
    **changes: Any,
) -> Graph:
    """A graph, not checked, whose buffers are given by width (or as a Buffer where they are more than that)."""
    buffers = {name: Buffer(width) if isinstance(width, int) else width for name, width in widths.items()}
    sizes: dict[str, Any] = {
        "vocabulary": buffers[logits].width if logits in buffers else 1,
        "layers": layers,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "context_length": 64,
        "inverse_frequencies": 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM),
    }
    return Graph(tuple(ops), buffers, tensors, logits, **{**sizes, **changes})


def embedded(
    width: int, *ops: Op, widths: Mapping[str, int | Buffer], tensors: Sequence[Tensor] = (), **rest: Any
) -> Graph:
    """A graph that starts with an embedding of ``width`` into the buffer ``x``; its table is a random ``table``."""
    table = tensor("table", np.random.default_rng(0).normal(size=(VOCABULARY, width)))
    everything = {given.name: given for given in (table, *tensors)}
    return graph_of((Embed("embedding", "table", "x"), *ops), {"x": width, **widths}, everything, **rest)


def logits_of(graph: Graph, steps: Sequence[tuple[Sequence[int], Sequence[int] | None]]) -> list[np.ndarray]:
    """Logits of each step (tokens, outputs) of one sequence, with a cache that does not round."""
    cache = ReferenceCache(graph, np.float64)
    return [run(graph, tokens, cache, outputs) for tokens, outputs in steps]


STEPS = (([3, 1, 4], None), ([1, 5], [1]), ([9, 2, 6], [2, 0]))


def assert_same(before: Graph, after: Graph) -> None:
    """Both compute the same logits for a few steps of a sequence, up to the order of fp64 sums."""
    for expected, found in zip(logits_of(before, STEPS), logits_of(after, STEPS), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * max(1.0, np.abs(expected).max()))


def labels(graph: Graph) -> list[str]:
    """Class names of the ops in order, to say what a pass left."""
    return [type(op).__name__ for op in graph.ops]


@st.composite
def random_graphs(draw: st.DrawFn, storages: Sequence[str] = ("F32", "F32", "F16", "Q8_0", "Q5_0", "Q4_0")) -> Graph:
    """Valid graphs with no plan: any op may read any buffer that is there, and any buffer may have several readers."""
    maker = _Maker(draw, storages)
    for _ in range(draw(st.integers(1, 12))):
        getattr(
            maker, draw(st.sampled_from(["linears", "linears", "norm", "swiglu", "add", "rope", "layer", "layer"]))
        )()
    return maker.finish()


class _Maker:
    def __init__(self, draw: st.DrawFn, storages: Sequence[str]) -> None:
        self.draw = draw
        self.storages = storages
        self.generator = np.random.default_rng(draw(st.integers(0, 1000)))
        self.ops: list[Op] = []
        self.widths: dict[str, int] = {}
        self.tensors: dict[str, Tensor] = {}
        self.layers = 0
        self.embed()

    def one(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def any(self, width: int | None = None) -> str:
        """A buffer of ``width``, made by a linear if there is none."""
        fitting = [name for name, found in self.widths.items() if width in (None, found)]
        if fitting and (width is None or self.one(True, True, False)):
            return str(self.one(*fitting[-4:]))
        assert width is not None
        return self.linear(self.any(), width)

    def new(self, width: int) -> str:
        name = f"b{len(self.widths)}"
        self.widths[name] = width
        return name

    def weight(self, shape: tuple[int, ...], storage: str = "F32") -> str:
        name = f"t{len(self.tensors)}"
        values = (
            self.generator.normal(0, shape[-1] ** -0.5, shape)
            if len(shape) == 2
            else self.generator.normal(1, 0.2, shape)
        )
        self.tensors[name] = tensor(name, values, storage)
        return name

    def embed(self) -> None:
        width = self.one(32, 64)
        table = self.weight((VOCABULARY, width))
        self.ops.append(Embed("embedding", table, self.new(width)))

    def linear(self, source: str, width: int) -> str:
        weight = self.weight((width, self.widths[source]), self.one(*self.storages))
        biases = (self.weight((width,)),) if self.one(True, False) else ()
        fitting = [name for name, found in self.widths.items() if found == width]
        residual = self.one(*fitting) if fitting and self.one(True, False, False) else None
        output = self.new(width)
        self.ops.append(Linear(f"linear {output}", source, (weight,), output, biases, residual))
        return output

    def linears(self) -> None:
        source = self.any()
        for _ in range(self.one(1, 2, 3)):
            self.linear(source, self.one(32, 64))

    def normalised(self, source: str, group: int) -> str:
        output = self.new(self.widths[source])
        epsilon = self.one(1e-5, 1e-5, 1e-6)
        self.ops.append(RMSNorm(f"norm {output}", source, self.weight((group,)), output, epsilon, group))
        return output

    def norm(self) -> None:
        source = self.any()
        self.normalised(source, self.one(HEAD_DIM, self.widths[source], self.widths[source]))

    def rotated(self, source: str) -> str:
        output = self.new(self.widths[source])
        self.ops.append(Rope(f"rope {output}", source, output, HEAD_DIM))
        return output

    def rope(self) -> None:
        self.rotated(self.any())

    def swiglu(self) -> None:
        gate = self.normalised(self.any(), HEAD_DIM)  # keeps products of products from growing without bound
        up = self.any(self.widths[gate])
        output = self.new(self.widths[gate])
        self.ops.append(SwiGLU(f"swiglu {output}", gate, up, output))

    def add(self) -> None:
        left = self.any()
        right = self.any(self.widths[left])
        output = self.new(self.widths[left])
        self.ops.append(Add(f"add {output}", *self.draw(st.permutations([left, right])), output))

    def layer(self) -> None:
        heads = self.one(2, 4)
        query, key, value = self.any(heads * HEAD_DIM), self.any(KEY_WIDTH), self.any(KEY_WIDTH)
        if self.one(True, False):
            query, key = self.normalised(query, HEAD_DIM), self.normalised(key, HEAD_DIM)
        if self.one(True, True, False):
            query, key = self.rotated(query), self.rotated(key)
        self.ops.append(KVAppend(f"append {self.layers}", self.layers, key, value))
        output = self.new(heads * HEAD_DIM)
        shape = (heads, KV_HEADS, HEAD_DIM)
        self.ops.append(Attention(f"attention {self.layers}", self.layers, query, output, *shape, 0.25))
        self.layers += 1

    def finish(self) -> Graph:
        source = self.any()
        weight = self.weight((VOCABULARY, self.widths[source]), self.one(*self.storages))
        self.ops.append(Linear("head", source, (weight,), "logits"))
        self.widths["logits"] = VOCABULARY
        return check(graph_of(self.ops, self.widths, self.tensors, self.layers))
