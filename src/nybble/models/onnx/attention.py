"""Attention and rotary embedding: ``GroupQueryAttention``, ``MultiHeadAttention`` and ``RotaryEmbedding``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...formats.onnx_model import OnnxNode, OnnxTensor
from ...graph.ops import Attention, KVAppend, Rope
from .elements import Numbers, Rows
from .movement import DoesNotFit, attribute, known_attributes
from .values import PAST_TOKENS, STEP_TOKENS, Array, Cache, Deferred, Elements, Value
from .walk import Walk, described

TOTAL_TOKENS = PAST_TOKENS + STEP_TOKENS
MASKED = -1e4
"""What is added to a hidden score is at most this; exporters write the lowest number of fp16 or fp32."""
MOST_HEADS = 4096


@dataclass(frozen=True, slots=True)
class _Heads:
    """How an attention op divides its rows."""

    query: int
    kv: int
    dimension: int


def group_query_attention(walk: Walk, node: OnnxNode) -> list[Value]:
    """``com.microsoft::GroupQueryAttention``, with its rotation if it has one."""
    known_attributes(
        node,
        "num_heads",
        "kv_num_heads",
        "scale",
        "do_rotary",
        "rotary_interleaved",
        "local_window_size",
        "softcap",
        "smooth_softmax",
        "qk_output",
        "k_quant_type",
        "v_quant_type",
        "kv_cache_bit_width",
    )
    _switched_off(node, "softcap", 0.0, 0)
    _switched_off(node, "smooth_softmax", 0, -1)
    _switched_off(node, "qk_output", 0)
    _switched_off(node, "k_quant_type", "NONE")
    _switched_off(node, "v_quant_type", "NONE")
    window = attribute(node, "local_window_size", int, -1)
    if window != -1:
        raise DoesNotFit(f"it attends to the last {window} tokens only; nybble runs attention to all")
    for place, what in ((10, "an attention bias"), (11, "a sink"), (12, "a scale of keys"), (13, "a scale of values")):
        if walk.operand(node, place) is not None:
            raise DoesNotFit(f"it has {what}, which nybble does not run")
    if any(node.outputs[3:]):
        raise DoesNotFit("it hands out its scores")
    heads, (query, key, value) = _grouped(walk, node)
    _check_lengths(walk, node)
    if attribute(node, "do_rotary", int, 0):
        _not_interleaved(node, "rotary_interleaved")
        if walk.operand(node, 9) is not None:
            _check_positions(walk.known(node, 9))
        tables = (walk.weight(node, 7), walk.weight(node, 8))
        query = _rotated(walk, node, "query", query, heads.dimension, tables)
        key = _rotated(walk, node, "key", key, heads.dimension, tables)
    caches = _cache_inputs(walk, node, 3)
    output = _attend(walk, node, heads, query, key, value, caches)
    cache = Cache((1, heads.kv, TOTAL_TOKENS, heads.dimension))
    return [output, cache, cache]


def _grouped(walk: Walk, node: OnnxNode) -> tuple[_Heads, tuple[Elements, Elements, Elements]]:
    """The heads, and query, key and value, which may come packed in one."""
    query_heads, kv_heads = attribute(node, "num_heads", int, 0), attribute(node, "kv_num_heads", int, 0)
    if not (1 <= kv_heads <= query_heads <= MOST_HEADS and query_heads % kv_heads == 0):
        raise DoesNotFit(f"{query_heads} query heads and {kv_heads} KV heads")
    packed = walk.elements(node, 0)
    separate = walk.operand(node, 1) is not None
    width = packed.numbers.shape[-1]
    all_heads = query_heads if separate else query_heads + 2 * kv_heads
    if packed.numbers.ndim != 3 or width % all_heads:
        raise DoesNotFit(f"its query has the shape {packed.numbers.shape}; expected {all_heads} heads")
    dimension = width // all_heads
    heads = _Heads(query_heads, kv_heads, dimension)
    if separate:
        return heads, (packed, walk.elements(node, 1), walk.elements(node, 2))
    ends = (query_heads * dimension, (query_heads + kv_heads) * dimension)
    parts = np.split(packed.numbers, ends, axis=2)
    return heads, (Elements(parts[0]), Elements(parts[1]), Elements(parts[2]))


def multi_head_attention(walk: Walk, node: OnnxNode) -> list[Value]:
    """``com.microsoft::MultiHeadAttention`` over keys and values that graph nodes took from the cache and repeated."""
    known_attributes(node, "num_heads", "scale", "unidirectional", "mask_filter_value")
    if walk.operand(node, 3) is not None or walk.operand(node, 4) is not None:
        raise DoesNotFit("it has biases or a padding mask, which nybble does not run")
    query_heads = attribute(node, "num_heads", int, 0)
    query, key, value = (walk.elements(node, place) for place in range(3))
    width = query.numbers.shape[-1]
    if query.numbers.ndim != 3 or not 1 <= query_heads <= MOST_HEADS or width % query_heads:
        raise DoesNotFit(f"its query has the shape {query.numbers.shape}; expected {query_heads} heads")
    bias = walk.operand(node, 5)
    if bias is not None:
        if not isinstance(bias, Deferred):
            check_causal(walk.known(node, 5))
        walk.masks.append(node.inputs[5])
    elif not attribute(node, "unidirectional", int, 0):
        raise DoesNotFit("it has no mask, so that tokens would see those after them")
    dimension = width // query_heads
    if walk.operand(node, 6) is not None:
        heads = _Heads(query_heads, query_heads, dimension)
        caches = _cache_inputs(walk, node, 6)
        output = _attend(walk, node, heads, query, key, value, caches)
        cache = Cache((1, query_heads, TOTAL_TOKENS, dimension))
        return [output, cache, cache]
    step_key, key_cache, kv_heads = _uncached(walk, key.numbers, query_heads, dimension)
    step_value, value_cache, value_heads = _uncached(walk, value.numbers, query_heads, dimension)
    if kv_heads != value_heads:
        raise DoesNotFit(f"it has {kv_heads} key heads but {value_heads} value heads")
    heads = _Heads(query_heads, kv_heads, dimension)
    return [_attend(walk, node, heads, query, step_key, step_value, (key_cache, value_cache))]


def _uncached(walk: Walk, numbers: Numbers, heads: int, dimension: int) -> tuple[Elements, str, int]:
    """Of keys (or values) of all tokens: those of the step, the cache the others came from, and the KV heads.

    Expected are heads · dimension features of each token, those of each KV head repeated for its query heads.
    """
    if numbers.shape == (1, heads, TOTAL_TOKENS, dimension):
        numbers = numbers.transpose(0, 2, 1, 3).reshape(1, TOTAL_TOKENS, heads * dimension)
    if numbers.shape != (1, TOTAL_TOKENS, heads * dimension):
        raise DoesNotFit(f"its keys or values have the shape {numbers.shape}")
    by_head = numbers.reshape(TOTAL_TOKENS, heads, dimension)
    firsts = by_head[-1, :, 0]
    kv_heads = len(set(firsts.tolist()))
    if heads % kv_heads or (by_head != np.repeat(by_head[:, :: heads // kv_heads], heads // kv_heads, axis=1)).any():
        raise DoesNotFit("its keys or values are not those of KV heads, each repeated for its query heads")
    own = by_head[:, :: heads // kv_heads]
    name = walk.table.source(int(own[0, 0, 0]))
    cache = walk.caches.get(name)
    if cache is None or not np.array_equal(own[:PAST_TOKENS], cache[0].transpose(1, 0, 2)):
        raise DoesNotFit("its keys or values do not begin with a cache")
    return Elements(own[PAST_TOKENS:].reshape(1, STEP_TOKENS, kv_heads * dimension)), name, kv_heads


def rotary_embedding(walk: Walk, node: OnnxNode) -> list[Value]:
    """``com.microsoft::RotaryEmbedding``, or ONNX's own of opset 23, over whole heads."""
    known_attributes(node, "interleaved", "num_heads", "rotary_embedding_dim", "is_packed_batching", "scale")
    _not_interleaved(node, "interleaved")
    _switched_off(node, "is_packed_batching", 0)
    _switched_off(node, "scale", 1.0)
    source = walk.elements(node, 0)
    positions, cosine, sine = (1, 2, 3) if node.domain else (3, 1, 2)
    _check_positions(walk.known(node, positions))
    tables = (walk.weight(node, cosine), walk.weight(node, sine))
    dimension = 2 * tables[0].shape[-1]
    shape = source.numbers.shape
    partial = attribute(node, "rotary_embedding_dim", int, 0)
    if partial not in (0, dimension) or (len(shape) == 4 and shape[-1] != dimension):
        raise DoesNotFit("it rotates part of each head; nybble rotates all of it")
    declared = attribute(node, "num_heads", int, 0)
    if len(shape) == 3 and (shape[-1] % dimension or declared not in (0, shape[-1] // dimension)):
        raise DoesNotFit(f"it rotates {shape[-1]} features in heads of {dimension}")
    if len(shape) == 3:
        return [_rotated(walk, node, "", source, dimension, tables)]
    if len(shape) != 4:
        raise DoesNotFit(f"its input has the shape {shape}")
    # (batch, heads, tokens, head_dim) is turned as rows of tokens, and handed on as it came.
    rows = Elements(source.numbers.transpose(0, 2, 1, 3).reshape(1, shape[2], -1))
    turned = _rotated(walk, node, "", rows, dimension, tables).numbers
    return [Elements(turned.reshape(1, shape[2], shape[1], shape[3]).transpose(0, 2, 1, 3))]


def _rotated(
    walk: Walk, node: OnnxNode, part: str, source: Elements, dimension: int, tables: tuple[OnnxTensor, OnnxTensor]
) -> Elements:
    if tables[0].shape[-1] * 2 != dimension:
        raise DoesNotFit(f"it rotates {2 * tables[0].shape[-1]} of {dimension} features of each head; nybble, all")
    walk.rotations.add((tables[0].name, tables[1].name))
    rows = walk.rows_of(source)
    if rows.width % dimension:
        raise DoesNotFit(f"it rotates {rows.width} features in heads of {dimension}")
    output, elements = walk.write(node, rows.width, source.numbers.shape, rows, f"rotated {part}".strip())
    label = walk.label(node, f"{part} rotation".strip())
    walk.ops.append(Rope(label, rows.buffer, output, dimension))
    return elements


def _attend(
    walk: Walk,
    node: OnnxNode,
    heads: _Heads,
    query: Elements,
    key: Elements,
    value: Elements,
    caches: tuple[str, str],
) -> Elements:
    rows = _step_rows(walk, "query", query, heads.query * heads.dimension)
    key_rows = _step_rows(walk, "key", key, heads.kv * heads.dimension)
    value_rows = _step_rows(walk, "value", value, heads.kv * heads.dimension)
    layer = walk.add_layer(caches, heads.kv, heads.dimension)
    scale = attribute(node, "scale", float, 0.0) or heads.dimension**-0.5
    if not math.isfinite(scale):
        raise DoesNotFit(f"its scale is {scale}")
    walk.ops.append(KVAppend(walk.label(node, "KV append"), layer, key_rows.buffer, value_rows.buffer))
    output, elements = walk.write(node, rows.width, (1, STEP_TOKENS, rows.width), rows, "attended")
    walk.ops.append(
        Attention(walk.label(node), layer, rows.buffer, output, heads.query, heads.kv, heads.dimension, scale=scale)
    )
    return elements


def _step_rows(walk: Walk, what: str, elements: Elements, width: int) -> Rows:
    rows = walk.rows_of(elements)
    if rows.width != width or rows.only_last or elements.numbers.shape != (1, STEP_TOKENS, width):
        raise DoesNotFit(f"its {what} has the shape {elements.numbers.shape}; expected (1, {STEP_TOKENS}, {width})")
    return rows


def _cache_inputs(walk: Walk, node: OnnxNode, place: int) -> tuple[str, str]:
    """The graph inputs that the caches of keys and values are; all of each must come as it is."""
    names = []
    for at in (place, place + 1):
        value = walk.operand(node, at)
        name = walk.table.source(int(value.numbers.flat[0])) if isinstance(value, Elements) else ""
        if name not in walk.caches or not isinstance(value, Elements) or value.numbers is not walk.caches[name]:
            raise DoesNotFit(f"its input {at} is {described(value)}; expected a cache that is an input of the graph")
        names.append(name)
    return names[0], names[1]


def _check_lengths(walk: Walk, node: OnnxNode) -> None:
    """``seqlens_k`` is the number of tokens so far less one, ``total_sequence_length`` that number."""
    last, total = walk.known(node, 5), walk.known(node, 6)
    if last.reshape(-1).tolist() != [TOTAL_TOKENS - 1] or total.reshape(-1).tolist() != [TOTAL_TOKENS]:
        raise DoesNotFit("its lengths are not those of the step and all tokens before it")


def _check_positions(positions: Array) -> None:
    expected = np.arange(PAST_TOKENS, TOTAL_TOKENS)
    # A single number is the position of the first token.
    if positions.size == 1 and int(positions.reshape(())) == PAST_TOKENS:
        return
    if positions.shape not in ((1, STEP_TOKENS), (STEP_TOKENS,)) or not np.array_equal(positions.reshape(-1), expected):
        raise DoesNotFit("its positions are not those of the tokens after the cache")


def check_causal(bias: Array) -> None:
    """A bias (1, heads or 1, tokens, all tokens) of 0 where a token may look, and of very little where it may not."""
    if bias.ndim != 4 or bias.shape[-1] < bias.shape[-2] or bias.shape[0] != 1 or not bias.size:
        raise DoesNotFit(f"its attention bias has the shape {bias.shape}")
    tokens, total = bias.shape[-2:]
    hidden = np.arange(total) > np.arange(total - tokens, total)[:, None]
    if not (np.where(hidden, 0, bias) == 0).all() or not (np.where(hidden, bias, MASKED) <= MASKED).all():
        raise DoesNotFit("its attention bias is not the causal mask: 0 for all tokens so far, and no others")


def _not_interleaved(node: OnnxNode, name: str) -> None:
    if attribute(node, name, int, 0) != 0:
        raise DoesNotFit("it rotates neighbouring features (interleaved); nybble runs models that rotate halves")


def _switched_off(node: OnnxNode, name: str, *accepted: object) -> None:
    value = node.attributes.get(name, accepted[0])
    if value not in accepted:
        raise DoesNotFit(f"its attribute {name} is {value!r}, a feature nybble does not have")
