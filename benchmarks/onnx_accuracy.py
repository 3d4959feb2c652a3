"""How far int8 activations take an ONNX model from its fp32 answers: ours, and ONNX Runtime's accuracy level 4.

Both engines run the same file over a few texts, token by token known (no generation). The fp32 answers are ONNX
Runtime's with accuracy level 1. Printed as JSON: relative RMS error of the logits and mean KL divergence in nats, over
all positions; and whether greedy text is equal. Needs onnxruntime:
python onnx_accuracy.py MODEL_FOLDER > results/onnx_accuracy.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from activation_rounding import TEXTS, log_probabilities
from numpy.typing import NDArray

import nybble
from nybble.formats.onnx_accuracy_level import patch_accuracy_level
from nybble.formats.open import open_checkpoint
from nybble.models.build import build_graph

PROMPTS = ("What is the capital of France?", "Write a haiku about rain.", "Explain what a CPU cache is.")
GREEDY_TOKENS = 48
Logits = NDArray[np.float64]


class OnnxRuntime:
    """A decoder in ONNX Runtime, one sequence at a time."""

    def __init__(self, path: Path, kv_heads: int, head_dim: int) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.empty = np.zeros((1, kv_heads, 0, head_dim), np.float32)

    def logits(self, ids: list[int]) -> Logits:
        """Logits after each of ``ids``."""
        count = len(ids)
        given: dict[str, Any] = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, count), np.int64),
            "position_ids": np.arange(count)[None],
        }
        feeds = {value.name: given.get(value.name, self.empty) for value in self.session.get_inputs()}
        (logits,) = self.session.run(["logits"], feeds)
        return np.asarray(logits[0], np.float64)

    def greedy(self, ids: list[int], count: int, ends: frozenset[int]) -> list[int]:
        """The likeliest continuation of ``ids``, recomputed from the start for each token."""
        answer: list[int] = []
        while len(answer) < count and not (answer and answer[-1] in ends):
            answer.append(int(self.logits(ids + answer)[-1].argmax()))
        return answer


def compared(exact: list[Logits], other: list[Logits]) -> dict[str, float]:
    """Error of ``other`` over all positions."""
    squared = sum(float(np.square(a - b).sum()) for a, b in zip(exact, other, strict=True))
    whole = sum(float(np.square(a).sum()) for a in exact)
    divergences = []
    for a, b in zip(exact, other, strict=True):
        logs = log_probabilities(a)
        divergences.append((np.exp(logs) * (logs - log_probabilities(b))).sum(axis=1))
    worst = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(exact, other, strict=True))
    return {
        "relative_rms": (squared / whole) ** 0.5,
        "worst_relative_to_largest": worst,
        "mean_kl": float(np.concatenate(divergences).mean()),
    }


def answers(models: dict[str, nybble.LLM], engines: dict[int, OnnxRuntime], prompt: str) -> dict[str, object]:
    """The greedy answers to ``prompt`` of all, and whether those with the same activations are equal."""
    model = models["f32"]
    ids = list(model.conversation([{"role": "user", "content": prompt}]))
    ends = model.tokenizer.end_tokens
    theirs = {level: engine.greedy(ids, GREEDY_TOKENS, ends) for level, engine in engines.items()}
    texts = {
        level: model.detokenize([token for token in answer if token not in ends]) for level, answer in theirs.items()
    }
    ours = {name: one.generate(prompt, max_tokens=GREEDY_TOKENS, temperature=0.0).text for name, one in models.items()}
    return {
        "prompt": prompt,
        "nybble f32": ours["f32"],
        "f32 equals level 1": ours["f32"] == texts[1],
        "int8 equals level 4": ours["int8"] == texts[4],
        "int8 equals level 1": ours["int8"] == texts[1],
        "level 4 equals level 1": texts[4] == texts[1],
    }


def main(folder: Path) -> None:
    """Print the comparison as JSON."""
    checkpoint = open_checkpoint(folder)
    graph = build_graph(checkpoint)
    models = {name: nybble.load(folder, accuracy=name, context_length=1024) for name in ("int8", "f32")}
    sequences = [models["f32"].tokenize(text) for text in TEXTS]
    engines: dict[int, OnnxRuntime] = {}
    # External data are looked for beside the model, so the patched files lie there for a moment.
    for level in (1, 4):
        patched = checkpoint.path.with_name(f"{checkpoint.path.stem}-level{level}.onnx")
        try:
            patch_accuracy_level(checkpoint.path, patched, level)
            engines[level] = OnnxRuntime(patched, graph.kv_heads, graph.head_dim)
        finally:
            patched.unlink(missing_ok=True)
    exact = [engines[1].logits(ids) for ids in sequences]
    run: dict[str, Callable[[list[int]], Logits]] = {
        "onnxruntime accuracy level 4": engines[4].logits,
        "nybble int8": lambda ids: models["int8"].logits(ids).astype(np.float64),
        "nybble f32": lambda ids: models["f32"].logits(ids).astype(np.float64),
    }
    results: dict[str, Any] = {name: compared(exact, [one(ids) for ids in sequences]) for name, one in run.items()}
    results["greedy"] = [answers(models, engines, prompt) for prompt in PROMPTS]
    json.dump({"model": folder.name, "onnxruntime": onnxruntime.__version__, **results}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
