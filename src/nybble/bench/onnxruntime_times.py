"""One step of an ONNX model in ONNX Runtime taken apart by its own profiler, in the same terms as ours."""

from __future__ import annotations

import importlib
import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BenchmarkFailed
from ..formats.onnx import open_onnx
from ..formats.onnx_accuracy_level import INT8_LEVEL, PATCH_COMMAND
from ..formats.onnx_model import OnnxModel, OnnxNode
from ..models.onnx.recognise import head_features
from .step_times import CONTEXT, DECODE_REPEATS, PREFILL, PREFILL_REPEATS, OpTime, StepTimes, as_kinds

FEWEST_TOKENS = 64
"""Any vocabulary has as many."""

NODE_SUFFIX = "_kernel_time"


def measure_onnxruntime(path: Path, threads: int, ceilings: Mapping[str, float]) -> list[StepTimes]:
    """As :func:`~nybble.bench.step_times.measure_steps`, in the ONNX Runtime of this Python.

    ``ceilings`` are those of :class:`~nybble.bench.ceilings.Ceilings`. Raises :class:`BenchmarkFailed` where there is
    no ONNX Runtime, or it does not run the model.
    """
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise BenchmarkFailed("there is no ONNX Runtime in this Python; pip install onnxruntime") from error
    model = open_onnx(path)
    features = head_features(model)
    with tempfile.TemporaryDirectory(prefix="nybble-profile-") as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            walls = [_run(session, *step, features) for step in ((1, DECODE_REPEATS), (PREFILL, PREFILL_REPEATS))]
            events = json.loads(Path(session.end_profiling()).read_bytes())
        except BenchmarkFailed:
            raise
        except Exception as error:  # its errors have no common class of their own
            raise BenchmarkFailed(f"{path}: ONNX Runtime does not run it: {str(error).splitlines()[0]}") from error
    runs = _events_of_runs(events)
    found = []
    for rows, times in zip((1, PREFILL), walls, strict=True):
        own, runs = runs[: len(times)], runs[len(times) :]
        middle = sorted(range(len(times)), key=lambda place: times[place])[len(times) // 2]
        ops = _op_times(model, own[middle], rows, ceilings)
        found.append(StepTimes(rows, as_kinds(ops, times[middle]), times[middle]))
    return found


def _run(session: Any, rows: int, repeats: int, features: int | None) -> list[float]:
    """Seconds of each run of a step of ``rows`` tokens."""
    feed = inputs_of_step(session.get_inputs(), rows, features)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        session.run(None, feed)
        seconds.append(time.perf_counter() - start)
    return seconds


def inputs_of_step(inputs: Sequence[Any], rows: int, features: int | None) -> dict[str, np.ndarray[Any, Any]]:
    """What a decoder of the usual names and shapes is fed with for a step of ``rows`` tokens, behind
    :data:`~nybble.bench.step_times.CONTEXT` others if it is one. ``features`` has a head whose cache leaves it open.

    Raises :class:`BenchmarkFailed` for an input of another name.
    """
    before = CONTEXT if rows == 1 else 0
    dtypes = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float16)": np.float16}
    feed: dict[str, np.ndarray[Any, Any]] = {}
    for given in inputs:
        dtype = dtypes.get(given.type, np.float32)
        if given.name == "input_ids":
            feed[given.name] = np.arange(rows, dtype=dtype)[None] % FEWEST_TOKENS
        elif given.name == "attention_mask":
            feed[given.name] = np.ones((1, before + rows), dtype)
        elif given.name == "position_ids":
            feed[given.name] = np.arange(before, before + rows, dtype=dtype)[None]
        elif "past" in given.name and len(given.shape) == 4:
            batch, heads, positions, width = given.shape
            sizes = (
                1 if isinstance(batch, str) else batch,
                heads,
                before,
                features if isinstance(width, str) else width,
            )
            if not isinstance(positions, str) or not all(isinstance(size, int) for size in sizes):
                raise BenchmarkFailed(
                    f"the input {given.name} has shape {given.shape}; expected one cache of any length"
                )
            feed[given.name] = np.zeros(sizes, dtype)
        else:
            raise BenchmarkFailed(f"the model has the input {given.name}, which a plain decoder has not")
    return feed


def _events_of_runs(events: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The events of the nodes of each run."""
    listed = [event for event in events if "dur" in event]
    runs = sorted((event for event in listed if event["name"] == "model_run"), key=lambda event: event["ts"])
    nodes = [event for event in listed if event.get("cat") == "Node" and event["name"].endswith(NODE_SUFFIX)]
    return [[node for node in nodes if run["ts"] <= node["ts"] <= run["ts"] + run["dur"]] for run in runs]


def _op_times(
    model: OnnxModel, events: Iterable[Mapping[str, Any]], rows: int, ceilings: Mapping[str, float]
) -> Iterable[OpTime]:
    nodes = {node.name: node for node in model.nodes if node.is_mat_mul_n_bits}
    for event in events:
        name, seconds = event["name"].removesuffix(NODE_SUFFIX), event["dur"] / 1e6
        node = nodes.get(name)
        if node is None:
            yield OpTime(str(event["args"]["op_name"]), 1, "", 0, 0, seconds, None)
        else:
            yield _linear(model, node, rows, seconds, ceilings)


def _linear(model: OnnxModel, node: OnnxNode, rows: int, seconds: float, ceilings: Mapping[str, float]) -> OpTime:
    weights = [model.initializers[name] for name in node.inputs[1:] if name in model.initializers]
    size = sum(tensor.octets.nbytes for tensor in weights)
    n, k, level = (node.attributes.get(name, 0) for name in ("N", "K", "accuracy_level"))
    products = rows * int(n) * int(k) if isinstance(n, int) and isinstance(k, int) else 0
    floor = max(size / ceilings["read_bandwidth"], products / ceilings["int8_peak"])
    cause = "other processes are busy, or this ONNX Runtime has no fast kernel for such blocks here"
    if level != INT8_LEVEL:
        cause = f"accuracy_level is {level}, so it multiplies in fp32; {PATCH_COMMAND}"
    kernel = f"MatMulNBits, accuracy_level {level}"
    return OpTime(node.name, 1, kernel, size, products, seconds, floor, cause)
