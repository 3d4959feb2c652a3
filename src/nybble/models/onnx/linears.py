"""Matrix products: ``MatMulNBits``, ``DequantizeLinear`` with ``MatMul``, and ``MatMul`` or ``Gemm`` of floats."""

from __future__ import annotations

from ...formats.onnx_model import OnnxNode, OnnxTensor
from ...graph.ops import Linear
from ...quant.tensor import Tensor
from .movement import DoesNotFit, attribute, known_attributes
from .values import Dequantised, Elements, Value, Weight
from .walk import Walk, described
from .weights import blocked_tensor, dequantised_tensor, float_tensor

MOST_FEATURES = 1 << 24
INT8_LEVELS = (0, 4)
"""``accuracy_level`` of nodes whose activations may be rounded to int8: unset, and int8. 1 to 3 ask for floats."""


def mat_mul_n_bits(walk: Walk, node: OnnxNode) -> list[Value]:
    """``com.microsoft::MatMulNBits``."""
    known_attributes(node, "K", "N", "bits", "block_size", "accuracy_level", "weight_prepacked")
    k, n = attribute(node, "K", int, 0), attribute(node, "N", int, 0)
    if not (1 <= k <= MOST_FEATURES and 1 <= n <= MOST_FEATURES):
        raise DoesNotFit(f"its K is {k} and its N is {n}; expected 1 to {MOST_FEATURES}")
    if attribute(node, "weight_prepacked", int, 0) != 0:
        raise DoesNotFit("its weights are packed for one kind of machine (weight_prepacked)")
    if walk.operand(node, 4) is not None:
        raise DoesNotFit("it has g_idx, an order of the features, which nybble does not run")
    level = attribute(node, "accuracy_level", int, 0)
    if not 0 <= level <= 4:
        raise DoesNotFit(f"its accuracy_level is {level}; expected 0 to 4")
    walk.levels[level] += 1
    tensor = blocked_tensor(
        walk.weight(node, 1),
        walk.weight(node, 2),
        walk.optional_weight(node, 3),
        (n, k),
        attribute(node, "bits", int, 4),
        attribute(node, "block_size", int, 0),
    )
    bias = walk.optional_weight(node, 5)
    return [_linear(walk, node, walk.elements(node, 0), tensor, bias, float_activations=level not in INT8_LEVELS)]


def dequantize_linear(walk: Walk, node: OnnxNode) -> list[Value]:
    """``DequantizeLinear`` of a weight matrix; which way round it is used, the next nodes say."""
    known_attributes(node, "axis", "block_size", "output_dtype")
    axis, block = attribute(node, "axis", int, 1), attribute(node, "block_size", int, 0)
    return [Dequantised(walk.weight(node, 0), walk.weight(node, 1), walk.optional_weight(node, 2), axis, block)]


def mat_mul(walk: Walk, node: OnnxNode) -> list[Value]:
    """``MatMul`` of an activation with a weight of (K, N)."""
    known_attributes(node)
    return [_product(walk, node, transposed=False, bias=None)]


def gemm(walk: Walk, node: OnnxNode) -> list[Value]:
    """``Gemm`` of an activation with a weight, and a bias."""
    known_attributes(node, "alpha", "beta", "transA", "transB")
    if attribute(node, "alpha", float, 1.0) != 1 or attribute(node, "beta", float, 1.0) != 1:
        raise DoesNotFit("it scales its operands")
    if attribute(node, "transA", int, 0) != 0:
        raise DoesNotFit("it transposes its activation")
    transposed = attribute(node, "transB", int, 0) != 0
    return [_product(walk, node, transposed=transposed, bias=walk.optional_weight(node, 2))]


def _product(walk: Walk, node: OnnxNode, *, transposed: bool, bias: OnnxTensor | None) -> Elements:
    source, factor = walk.elements(node, 0), walk.operand(node, 1)
    if isinstance(factor, Weight):
        if len(factor.tensor.shape) != 2:
            raise DoesNotFit(f"its weight has the shape {factor.tensor.shape}; expected a matrix")
        # (K, N) is to become (N, K), unless it is read the other way round.
        tensor = walk.float_matrix(factor.tensor, transposed=factor.transposed == transposed)
    elif isinstance(factor, Dequantised):
        parts = (factor.codes, factor.scales, factor.zero_points, factor.axis, factor.block)
        tensor = dequantised_tensor(*parts, transposed=factor.transposed != transposed)
    else:
        raise DoesNotFit(f"it multiplies an activation with {described(factor)}")
    return _linear(walk, node, source, tensor, bias, float_activations=False)


def _linear(
    walk: Walk, node: OnnxNode, source: Elements, tensor: Tensor, bias: OnnxTensor | None, *, float_activations: bool
) -> Elements:
    n, k = tensor.shape
    rows = walk.rows_of(source)
    if source.numbers.shape[-1] != k or rows.width != k:
        raise DoesNotFit(f"its activation has {source.numbers.shape[-1]} features, its weight {k}")
    biases: tuple[str, ...] = ()
    if bias is not None:
        if bias.shape != (n,):
            raise DoesNotFit(f"its bias has the shape {bias.shape}; expected ({n},)")
        biases = (walk.take(float_tensor(bias)),)
    output, elements = walk.write(node, n, (*source.numbers.shape[:-1], n), rows)
    weights = (walk.take(tensor),)
    walk.ops.append(Linear(walk.label(node), rows.buffer, weights, output, biases, float_activations=float_activations))
    return elements
