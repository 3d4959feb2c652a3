"""How far int8 activations take an ONNX model from its fp32 answers: ours, and ONNX Runtime's accuracy level 4.

All run the same file over a few texts, token by token known (no generation). The fp32 answers are ONNX Runtime's with
accuracy level 1. Printed as JSON: relative RMS error of the logits, the largest error relative to the largest logit,
and mean KL divergence in nats, over all positions; then, for greedy answers, where each first takes another token than
fp32's, and how much less likely fp32 had that token (difference of logits). Needs onnxruntime:
python onnx_accuracy.py MODEL_FOLDER... > results/onnx_accuracy.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from activation_rounding import TEXTS, log_probabilities
from numpy.typing import NDArray

import nybble
import nybble.ort
from nybble.bench.provenance import provenance
from nybble.formats.onnx_accuracy_level import patch_accuracy_level
from nybble.formats.open import open_checkpoint
from nybble.models.build import build_graph

PROMPTS = ("What is the capital of France?", "Write a haiku about rain.", "Explain what a CPU cache is.")
GREEDY_TOKENS = 48
EXACT, LEVEL_4 = "onnxruntime accuracy level 1", "onnxruntime accuracy level 4"
PROVIDER = "onnxruntime with nybble's kernels"
Logits = NDArray[np.float64]


class OnnxRuntime:
    """A decoder in ONNX Runtime, one sequence at a time."""

    def __init__(self, path: Path, kv_heads: int, head_dim: int, *, nybble_kernels: bool = False) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if nybble_kernels:
            self.session = onnxruntime.InferenceSession(str(path), nybble.ort.session_options(options))
        else:
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


def greedy(logits: Callable[[list[int]], Logits], ids: list[int], ends: frozenset[int]) -> list[int]:
    """The likeliest continuation of ``ids``, recomputed from the start for each token."""
    answer: list[int] = []
    while len(answer) < GREEDY_TOKENS and not (answer and answer[-1] in ends):
        answer.append(int(logits(ids + answer)[-1].argmax()))
    return answer


def difference(exact: Logits, answer: list[int], other: Logits) -> dict[str, float] | None:
    """Where an engine with the logits ``other`` leaves the greedy ``answer``, and by how much fp32 preferred its own;
    None where it does not.

    Both logits are those behind the prompt and each token of ``answer``: up to the first difference, an engine that
    answers by itself has the same tokens before it.
    """
    for place, own in enumerate(answer):
        theirs = int(other[place].argmax())
        if own != theirs:
            return {"token": place, "fp32_prefers_its_own_by": float(exact[place][own] - exact[place][theirs])}
    return None


def measure(folder: Path) -> dict[str, Any]:
    """The comparison on one model."""
    checkpoint = open_checkpoint(folder)
    graph = build_graph(checkpoint)
    models = {
        name: nybble.load(folder, accuracy=name, kv=kv, context_length=1024)
        for name, kv in (("int8", "fp16"), ("f32", "fp32"))
    }
    sequences = [models["f32"].tokenize(text) for text in TEXTS]
    engines: dict[str, OnnxRuntime] = {}
    # External data are looked for beside the model, so the patched files lie there for a moment.
    for name, level, ours in ((EXACT, 1, False), (LEVEL_4, 4, False), (PROVIDER, 4, True)):
        patched = checkpoint.path.with_name(f"{checkpoint.path.stem}-level{level}.onnx")
        try:
            patch_accuracy_level(checkpoint.path, patched, level)
            engines[name] = OnnxRuntime(patched, graph.kv_heads, graph.head_dim, nybble_kernels=ours)
        finally:
            patched.unlink(missing_ok=True)
    run: dict[str, Callable[[list[int]], Logits]] = {
        LEVEL_4: engines[LEVEL_4].logits,
        PROVIDER: engines[PROVIDER].logits,
        "nybble int8": lambda ids: models["int8"].logits(ids).astype(np.float64),
        "nybble f32": lambda ids: models["f32"].logits(ids).astype(np.float64),
    }
    exact = [engines[EXACT].logits(ids) for ids in sequences]
    found: dict[str, Any] = {"model": folder.name}
    found |= {name: compared(exact, [one(ids) for ids in sequences]) for name, one in run.items()}
    found["greedy"] = []
    for prompt in PROMPTS:
        ids = list(models["f32"].conversation([{"role": "user", "content": prompt}]))
        ends = models["f32"].tokenizer.end_tokens
        answer = greedy(engines[EXACT].logits, ids, ends)
        before = len(ids) - 1
        exact_logits = engines[EXACT].logits(ids + answer)[before:]
        text = models["f32"].detokenize([token for token in answer if token not in ends])
        differences = {name: difference(exact_logits, answer, one(ids + answer)[before:]) for name, one in run.items()}
        found["greedy"].append({"prompt": prompt, "fp32": text, "first_difference": differences})
    return found


def main(folders: list[Path]) -> None:
    """Print the comparison as JSON."""
    found = [measure(folder) for folder in folders]
    json.dump({"onnxruntime": onnxruntime.__version__, **asdict(provenance()), "models": found}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
