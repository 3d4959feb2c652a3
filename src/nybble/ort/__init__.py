"""Stock ONNX Runtime with nybble's kernels for ``MatMulNBits``: no patch, no rebuild.

>>> import nybble.ort, onnxruntime
>>> session = onnxruntime.InferenceSession("model.onnx", nybble.ort.session_options())

From ONNX Runtime 1.23 on, a plugin execution provider takes the nodes of unmodified models. Older versions, from 1.17
on, run models that ``nybble patch --ort-custom-op`` made: their nodes are of a custom operator of the domain
``nybble``.
"""

from __future__ import annotations

from .sessions import plugin_path, register, session_options

__all__ = ["plugin_path", "register", "session_options"]
