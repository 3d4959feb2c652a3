"""All passes in the order that suits the native engine."""

from __future__ import annotations

from collections.abc import Callable

from ...quant.tensor import Tensor
from ..graph import Graph
from ..ops import Linear
from .fold_quantise import fold_quantise
from .fold_residuals import fold_residuals
from .fuse_rotate_append import fuse_rotate_append
from .merge_linears import merge_linears, same_packing
from .quantise_activations import Rounding, quantise_activations
from .select_outputs import select_outputs


def lower(
    graph: Graph,
    rounding_of: Callable[[Linear], Rounding | None],
    alike: Callable[[Tensor, Tensor], bool] = same_packing,
) -> Graph:
    """The graph the native engine runs: merged linears, folded residuals, fused RoPE, selected rows, int8 activations.

    ``rounding_of`` is asked once for each linear of the merged graph and answers how its activations become int8, or
    None for fp32 activations. ``alike`` says whether two weights may become one linear.
    """
    graph = merge_linears(graph, alike)
    graph = fold_residuals(graph)
    graph = fuse_rotate_append(graph)
    graph = select_outputs(graph)
    graph = quantise_activations(graph, rounding_of)
    return fold_quantise(graph)
