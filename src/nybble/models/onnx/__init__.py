"""ONNX models: a decoder recognised by what its graph computes. Not an architecture: any that fits the ops."""

from __future__ import annotations

from ...errors import ModelFileError
from ...formats.checkpoint import Checkpoint
from ...graph.graph import Graph
from .recognise import recognise


def build(checkpoint: Checkpoint) -> Graph:
    """The graph of an ``onnx`` checkpoint."""
    if checkpoint.graph is None:
        raise ModelFileError(checkpoint.path, "general.architecture", "is onnx, but the file holds no ONNX graph")
    limit = checkpoint.metadata.get("onnx.context_length")
    return recognise(checkpoint.graph, limit if isinstance(limit, int) else None)
