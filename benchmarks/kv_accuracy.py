"""What a KV cache of fewer bits costs the default model.

The same tokens are computed with fp32 activations and each type of cache; printed are KL divergences, in nats, from the
one that keeps keys and values in fp32, over all positions, as JSON.
Takes a minute: python kv_accuracy.py > results/kv_accuracy.json
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from activation_rounding import TEXTS, log_probabilities

import nybble
from nybble import LLM

PROSE = Path(__file__).parent.parent / "LICENSE"  # long, and never edited


def outputs(model: LLM) -> np.ndarray:
    """Log probabilities after each token of all texts: (tokens, vocabulary)."""
    texts = [*TEXTS, PROSE.read_text()]
    return np.concatenate([log_probabilities(model.logits(model.tokenize(text)).astype(np.float64)) for text in texts])


def main() -> None:
    """Print the divergences as JSON."""
    exact = outputs(nybble.load(accuracy="f32", kv="fp32"))
    rows = []
    for kind in ("fp16", "bf16", "int8"):
        rounded = outputs(nybble.load(accuracy="f32", kv=kind))
        divergences = (np.exp(exact) * (exact - rounded)).sum(axis=1)
        rows.append(
            {
                "kv": kind,
                "kl_divergence_mean": round(float(divergences.mean()), 7),
                "kl_divergence_99_percent": round(float(np.quantile(divergences, 0.99)), 7),
                "same_top_token": round(float((exact.argmax(axis=1) == rounded.argmax(axis=1)).mean()), 4),
                "positions": len(divergences),
            }
        )
    print(json.dumps({"model": "smollm2-135m", "activations": "fp32", "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
