"""nybble runs 4-bit and 8-bit language models on small CPUs.

>>> import nybble
>>> model = nybble.load("smollm2-135m")
>>> for piece in model.stream("Hello", max_tokens=50):
...     print(piece, end="", flush=True)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.chat import Chat
    from .engine.generation import Generation, TextStream
    from .engine.llm import LLM
    from .engine.loading import load
    from .engine.sampling import SamplingOptions
    from .errors import NybbleError

__all__ = ["LLM", "Chat", "Generation", "NybbleError", "SamplingOptions", "TextStream", "load"]
__version__ = "0.1.0"

# Imported when first used: `import nybble` and `nybble --help` must be quick.
_HOME = {
    "Chat": ".engine.chat",
    "Generation": ".engine.generation",
    "LLM": ".engine.llm",
    "NybbleError": ".errors",
    "SamplingOptions": ".engine.sampling",
    "TextStream": ".engine.generation",
    "load": ".engine.loading",
}


def __getattr__(name: str) -> Any:
    if name == "ort":
        return importlib.import_module(".ort", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
