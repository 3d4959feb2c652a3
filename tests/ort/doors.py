"""Sessions on the two doors to nybble's kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import nybble.ort

from .nodes import Node

VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
HAS_PROVIDERS = VERSION >= (1, 23)
DOORS = [
    "custom op",
    pytest.param("provider", marks=pytest.mark.skipif(not HAS_PROVIDERS, reason="this ONNX Runtime has no plugins")),
]


def options(threads: int = 2) -> Any:
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = threads
    made.log_severity_level = 4
    return made


def stock(node: Node, **changes: Any) -> Any:
    return onnxruntime.InferenceSession(node.model(**changes), options(), providers=["CPUExecutionProvider"])


def session(door: str, node: Node, threads: int = 2, made: Any = None, **changes: Any) -> Any:
    """On ``made`` session options, or such with ``threads``."""
    node = node.on_custom_op() if door == "custom op" else node
    made = nybble.ort.session_options(options(threads) if made is None else made)
    return onnxruntime.InferenceSession(node.model(**changes), made)


def provider_of_node(node: Node, folder: Path) -> str:
    """Which provider ran the node, from ONNX Runtime's own profiler."""
    made = options()
    made.enable_profiling = True
    made.profile_file_prefix = str(folder / "profile")
    profiled = session("provider", node, made=made)
    profiled.run(None, {"A": node.activations(1)})
    events = json.loads(Path(profiled.end_profiling()).read_text(encoding="utf-8"))
    providers = {
        event["args"]["provider"] for event in events if event["cat"] == "Node" and "provider" in event["args"]
    }
    (provider,) = providers
    return str(provider)
