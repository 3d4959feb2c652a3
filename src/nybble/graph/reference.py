"""The oracle: executes any graph in numpy, one plain definition per word of the op vocabulary.

Everything is computed in the ``dtype`` asked for (fp64 by default). Three roundings belong to the meaning of a graph
and are done whatever the dtype: keys and values are rounded to fp16 as they enter the cache; what is written to a
buffer with a ``quantised_block`` is rounded to int8 codes with one scale per group of 128 features; weights have the
values their storage gives them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidParameter
from ..quant.blocks import dequantise
from ..quant.matrix import to_matrix
from ..quant.quantise import quantised
from ..quant.tensor import Tensor
from .check import check
from .graph import Buffer, Graph
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

Array = NDArray[np.floating]

ACTIVATION_GROUP = 128
"""Features of one row that share a scale when they are rounded to int8."""
OUTLIER_RATIO = 5
"""A value so many times larger than its group's root mean square is an outlier: it is not rounded to int8."""
GROUP_OUTLIERS = 4
"""Most outliers of one group."""


def quantise_rows(values: Array) -> tuple[Array, Array]:
    """Symmetric int8 codes (rows, width) of ``values`` (rows, width) and their scales (rows, groups), in its dtype.

    Groups are runs of 128 features; the last one of a row may be shorter. scale = max|x| / 127 and code =
    round-half-to-even(x / scale), an integer of -127..127; a group of zeros has scale and codes 0. The native engine
    computes x · (127 / max) in fp32, so an x within rounding error of a tie may get the neighbouring code there; and it
    takes a group with no magnitude over 1e-30 for zeros.
    """
    groups = _groups(values)
    scales = np.abs(groups).max(axis=2) / 127
    divisors = np.where(scales == 0, 1, scales)
    codes = np.clip(np.rint(groups / divisors[:, :, None]), -127, 127)
    return _without_groups(codes)[:, : values.shape[1]], scales


def outliers_of(values: Array) -> Array:
    """The outliers of ``values`` (rows, width), zero elsewhere.

    Of each group, the largest value is an outlier if it exceeds five times the group's root mean square, then the
    largest of the others by the same rule; of equal ones the first.
    """
    rest = _groups(values)
    taken = np.zeros_like(rest)
    counts = np.minimum(ACTIVATION_GROUP, values.shape[1] - np.arange(rest.shape[1]) * ACTIVATION_GROUP)
    for _ in range(GROUP_OUTLIERS):
        magnitudes = np.abs(rest)
        over = np.square(magnitudes.max(axis=2)) > OUTLIER_RATIO**2 * np.square(rest).sum(axis=2) / counts
        at = (*np.nonzero(over), magnitudes.argmax(axis=2)[over])
        taken[at] = rest[at]
        rest[at] = 0
    outliers: Array = _without_groups(taken)[:, : values.shape[1]]
    return outliers


def fake_quantise(values: Array) -> Array:
    """``values`` (rows, width) as they read back after rounding to int8: same shape and dtype.

    Outliers are kept, the rest is code · scale of :func:`quantise_rows`.
    """
    outliers = outliers_of(values)
    codes, scales = quantise_rows(values - outliers)
    rounded: Array = codes * np.repeat(scales, ACTIVATION_GROUP, axis=1)[:, : values.shape[1]] + outliers
    return rounded


def _groups(values: Array) -> Array:
    """``values`` (rows, width) as (rows, groups, 128), the last group padded with zeros."""
    rows, width = values.shape
    groups = -(-width // ACTIVATION_GROUP)
    padded = np.zeros((rows, groups * ACTIVATION_GROUP), values.dtype)
    padded[:, :width] = values
    return padded.reshape(rows, groups, ACTIVATION_GROUP)


def _without_groups(values: Array) -> Array:
    return values.reshape(values.shape[0], values.shape[1] * values.shape[2])


def rms_norm(values: Array, weight: Array, epsilon: float) -> Array:
    """``values`` (..., len(weight)) divided by their root mean square over the last axis, times ``weight``."""
    mean_square = np.square(values).mean(axis=-1, keepdims=True)
    normed: Array = values / np.sqrt(mean_square + values.dtype.type(epsilon)) * weight
    return normed


def silu(values: Array) -> Array:
    """``values`` · sigmoid(``values``)."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, -0
        activated: Array = values / (1 + np.exp(-values))
    return activated


def rotate(values: Array, positions: NDArray[np.intp], inverse_frequencies: NDArray[np.float64]) -> Array:
    """RoPE of ``values`` (rows, heads · head_dim): pairs (i, i + head_dim/2) of each head turn by position · frequency.

    The angles are computed in fp64 whatever the dtype of ``values``.
    """
    half = len(inverse_frequencies)
    angles = positions[:, None] * inverse_frequencies
    cosine = np.cos(angles).astype(values.dtype)[:, None]
    sine = np.sin(angles).astype(values.dtype)[:, None]
    heads = values.reshape(len(values), -1, 2 * half)
    first, second = heads[..., :half], heads[..., half:]
    turned = np.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=-1)
    return turned.reshape(values.shape)


def attend(
    query: Array, keys: Array, values: Array, positions: NDArray[np.intp], kv_heads: int, head_dim: int, scale: float
) -> Array:
    """Causal attention of ``query`` (rows, heads · head_dim) over ``keys``, ``values`` (length, kv_heads · head_dim).

    The row at position p attends to keys 0..p. Consecutive groups of heads / kv_heads query heads share a KV head.
    """
    grouped = query.reshape(len(query), kv_heads, -1, head_dim)
    hidden = np.arange(len(keys)) > positions[:, None]
    output = np.empty_like(grouped)
    for head in range(kv_heads):
        columns = slice(head * head_dim, (head + 1) * head_dim)
        scores = grouped[:, head] @ keys[:, columns].T * query.dtype.type(scale)
        scores = np.where(hidden[:, None], -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        output[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ values[:, columns]
    return output.reshape(query.shape)


class ReferenceWeights:
    """Decoded weights, kept so that each is decoded once. Shared by every cache that is given the same instance."""

    def __init__(self) -> None:
        self._decoded: dict[tuple[Tensor, np.dtype[np.floating]], Array] = {}

    def __call__(self, tensor: Tensor, dtype: np.dtype[np.floating]) -> Array:
        """``tensor`` in ``dtype``, in its own shape."""
        key = (tensor, dtype)
        if key not in self._decoded:
            self._decoded[key] = _packed_values(tensor).astype(dtype, copy=False).reshape(tensor.shape)
        return self._decoded[key]


def _packed_values(tensor: Tensor) -> NDArray[np.floating]:
    """Weights as kernels see them: quantised, and scales that are not fp16 to begin with rounded to it."""
    tensor = quantised(tensor)
    return dequantise(tensor) if tensor.storage.is_float else to_matrix(tensor).dequantise()


class ReferenceCache:
    """Keys and values of one sequence, per layer, each (length, kv_heads · head_dim) in ``dtype``.

    ``dtype`` is fp16 unless a test wants the cache not to round. ``weights`` may be shared with other caches.
    Raises :class:`~nybble.graph.check.GraphError` if ``graph`` is not well formed.
    """

    def __init__(
        self, graph: Graph, dtype: type[np.floating] = np.float16, weights: ReferenceWeights | None = None
    ) -> None:
        check(graph)
        empty = np.zeros((0, graph.kv_heads * graph.head_dim), dtype)
        self.keys: list[Array] = [empty] * graph.layers
        self.values: list[Array] = [empty] * graph.layers
        self.length = 0
        self.weights = weights or ReferenceWeights()

    def append(self, layer: int, key: Array, value: Array) -> None:
        """Write rows of ``key`` and ``value`` at positions ``length``, ``length`` + 1, ... of ``layer``, rounded."""
        for store, rows in ((self.keys, key), (self.values, value)):
            store[layer] = np.concatenate((store[layer][: self.length], rows.astype(store[layer].dtype)))

    def truncate(self, length: int) -> None:
        """Forget every token from position ``length`` on."""
        if not 0 <= length <= self.length:
            raise InvalidParameter(f"cannot truncate a cache of {self.length} tokens to {length}")
        self.length = length


def run(
    graph: Graph,
    tokens: Sequence[int],
    cache: ReferenceCache,
    outputs: Sequence[int] | None = None,
    dtype: type[np.floating] = np.float64,
) -> Array:
    """Execute one step: append ``tokens`` to the sequence in ``cache`` and return logits.

    ``outputs`` are the rows of ``tokens`` whose logits are wanted, None for all; the result is (outputs, vocabulary) in
    ``dtype``. Raises :class:`~nybble.errors.InvalidParameter` for no tokens, or a token or row that does not exist.
    """
    rows = np.arange(len(tokens)) if outputs is None else np.asarray(outputs, np.intp).reshape(-1)
    if len(tokens) == 0:
        raise InvalidParameter("a step needs at least one token")
    if rows.size and not (rows.min() >= 0 and rows.max() < len(tokens)):
        raise InvalidParameter(f"outputs {rows.tolist()} are not all rows 0..{len(tokens) - 1} of the step")
    step = _Step(graph, np.asarray(tokens, np.intp), cache, rows, np.dtype(dtype))
    for op in graph.ops:
        step.execute(op)
    cache.length += len(tokens)
    logits = step.read(graph.logits)
    return logits if graph.buffers[graph.logits].per_output else logits[rows]


class _Step:
    """The values of all buffers during one step."""

    def __init__(
        self,
        graph: Graph,
        tokens: NDArray[np.intp],
        cache: ReferenceCache,
        outputs: NDArray[np.intp],
        dtype: np.dtype[np.floating],
    ) -> None:
        self.graph = graph
        self.tokens = tokens
        self.cache = cache
        self.outputs = outputs
        self.dtype = dtype
        self.positions = cache.length + np.arange(len(tokens))
        self.buffers: dict[str, Array] = {}

    def tensor(self, name: str) -> Array:
        return self.cache.weights(self.graph.tensors[name], self.dtype)

    def read(self, name: str) -> Array:
        buffer: Buffer = self.graph.buffers[name]
        if buffer.parent is None:
            return self.buffers[name]
        return self.buffers[buffer.parent][:, buffer.offset : buffer.offset + buffer.width]

    def write(self, name: str, values: Array) -> None:
        block = self.graph.buffers[name].quantised_block
        self.buffers[name] = values if block is None else fake_quantise(values)

    def execute(self, op: Op) -> None:
        match op:
            case Embed():
                self.write(op.output, self.embed(op))
            case RMSNorm():
                self.write(op.output, self.normed(self.read(op.input), op.weight, op.epsilon))
            case Linear():
                self.write(op.output, self.linear(op))
            case Rope():
                self.write(op.output, self.rotated(self.read(op.input)))
            case KVAppend():
                self.cache.append(op.layer, self.read(op.key), self.read(op.value))
            case RotateAppend():
                query = self.normed(self.read(op.query), op.query_norm, op.epsilon)
                key = self.normed(self.read(op.key), op.key_norm, op.epsilon)
                self.cache.append(op.layer, self.rotated(key), self.read(op.value))
                self.write(op.output, self.rotated(query))
            case Attention():
                keys = self.cache.keys[op.layer].astype(self.dtype)
                values = self.cache.values[op.layer].astype(self.dtype)
                query = self.read(op.query)
                heads = (op.kv_heads, op.head_dim, op.scale)
                self.write(op.output, attend(query, keys, values, self.positions, *heads))
            case SwiGLU():
                self.write(op.output, silu(self.read(op.gate)) * self.read(op.up))
            case Add():
                self.write(op.output, self.read(op.left) + self.read(op.right))
            case SelectOutputs():
                self.write(op.output, self.read(op.input)[self.outputs])
            case Quantise():
                self.write(op.output, self.read(op.input))

    def embed(self, op: Embed) -> Array:
        table = self.graph.tensors[op.table]
        if not (self.tokens.min() >= 0 and self.tokens.max() < table.shape[0]):
            raise InvalidParameter(f"a token of {self.tokens.tolist()} is not one of 0..{table.shape[0] - 1}")
        rows = table.matrix_of_rows(self.tokens)
        return _packed_values(rows).astype(self.dtype)

    def linear(self, op: Linear) -> Array:
        values = self.read(op.input)
        parts = [values @ self.tensor(weight).T for weight in op.weights]
        output = np.concatenate(parts, axis=1)
        if op.biases:
            output = output + np.concatenate([self.tensor(bias) for bias in op.biases])
        return output if op.residual is None else output + self.read(op.residual)

    def rotated(self, values: Array) -> Array:
        return rotate(values, self.positions, self.graph.inverse_frequencies)

    def normed(self, values: Array, weight: str | None, epsilon: float) -> Array:
        if weight is None:
            return values
        groups = values.reshape(-1, self.graph.tensors[weight].elements)
        return rms_norm(groups, self.tensor(weight), epsilon).reshape(values.shape)
