"""Telling ONNX Runtime of nybble's kernels."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .. import _native
from ..errors import KernelUnavailable

OLDEST_OPERATOR = (1, 17)
OLDEST_PROVIDER = (1, 23)
_PROVIDER = "nybble"


def plugin_path() -> Path:
    """The shared library that ONNX Runtime loads: a custom operator library and an execution provider in one."""
    return Path(_native.__file__).resolve().parent / "libnybble_onnxruntime.so"


def register() -> None:
    """Register the execution provider ``nybble`` with ONNX Runtime, once for this process.

    Raises KernelUnavailable when onnxruntime is not installed, older than 1.23, or can't load the library.
    """
    runtime, version = _runtime()
    if version < OLDEST_PROVIDER:
        raise KernelUnavailable(
            f"onnxruntime {runtime.__version__} has no plugin execution providers; upgrade to 1.23 or newer, or run "
            "a model that `nybble patch --ort-custom-op` made, with nybble.ort.session_options()"
        )
    if not _devices(runtime):
        try:
            runtime.register_execution_provider_library(_PROVIDER, str(plugin_path()))
        except Exception as problem:
            raise KernelUnavailable(f"onnxruntime can't load {plugin_path()}: {problem}") from problem


def session_options(options: Any = None) -> Any:
    """``options``, or new ones, with nybble's kernels added to them.

    From ONNX Runtime 1.23 on sessions made with them run ``com.microsoft::MatMulNBits`` on the provider, which is
    registered if need be. With any version they run models of ``nybble patch --ort-custom-op``. Give the session no
    ``providers``: they would replace those of its options.

    Args:
        options: An ``onnxruntime.SessionOptions``, which is changed.

    Raises KernelUnavailable when onnxruntime is not installed, older than 1.17, or can't load the library.
    """
    runtime, version = _runtime()
    options = runtime.SessionOptions() if options is None else options
    try:
        options.register_custom_ops_library(str(plugin_path()))
    except Exception as problem:
        raise KernelUnavailable(f"onnxruntime can't load {plugin_path()}: {problem}") from problem
    if version >= OLDEST_PROVIDER:
        register()
        options.add_provider_for_devices(_devices(runtime)[:1], {})
    return options


def _runtime() -> tuple[Any, tuple[int, int]]:
    """onnxruntime, and its version."""
    try:
        runtime: Any = importlib.import_module("onnxruntime")
    except ImportError as problem:
        raise KernelUnavailable(f"onnxruntime can't be imported ({problem}): pip install onnxruntime") from problem
    major, minor = (int(part) for part in runtime.__version__.split(".")[:2])
    if (major, minor) < OLDEST_OPERATOR:
        raise KernelUnavailable(f"onnxruntime {runtime.__version__} is too old for nybble's kernels: upgrade to 1.17")
    return runtime, (major, minor)


def _devices(runtime: Any) -> list[Any]:
    """What the provider can run on: the CPU, or nothing while it is not registered."""
    return [device for device in runtime.get_ep_devices() if device.ep_name == _PROVIDER]
