"""Other engines: what each needs, and a module each that measures it like ours.

The modules run in the Python the engine is installed in, and know nothing of nybble but jobs and subjects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """Another engine.

    ``library`` is what Python imports, ``install`` how to get it. ``own_model`` says what has to be made first where it
    does not read GGUF files; None where it does.
    """

    library: str
    install: str
    own_model: str | None = None


PEERS: Mapping[str, Peer] = {
    "llama-cpp": Peer("llama_cpp", "pip install llama-cpp-python"),
    "openvino-genai": Peer("openvino_genai", "pip install openvino-genai"),
    "onnxruntime-genai": Peer(
        "onnxruntime_genai",
        "pip install onnxruntime-genai",
        "a folder that `python -m onnxruntime_genai.models.builder` made",
    ),
    "ctranslate2": Peer("ctranslate2", "pip install ctranslate2", "a folder that `ct2-transformers-converter` made"),
    "mnn": Peer("MNN", "pip install MNN", "the config.json that `llmexport` made"),
}
