"""What rounding activations to int8 costs the default model, and what keeping outliers saves.

The numpy oracle computes the same tokens with fp32 activations, with all values rounded, and with up to four outliers
of each group of 128 kept; printed are KL divergences from the first, in nats, over all positions of a few texts, as
JSON.
Takes a few minutes: python activation_rounding.py > results/activation_rounding.json
"""

from __future__ import annotations

import json
import sys

import numpy as np
from numpy.typing import NDArray

from nybble.formats.open import open_checkpoint
from nybble.graph import reference
from nybble.graph.graph import Graph
from nybble.graph.passes.lower import lower
from nybble.hub.resolve import resolve
from nybble.models.build import build_graph
from nybble.tokenizer.gguf_tokenizer import tokenizer_from_gguf

TEXTS = (
    "The quick brown fox jumps over the lazy dog, and then it runs into the forest where it meets a bear in search of "
    "for honey. The bear says hello to the fox and asks whether it has seen any bees.",
    "Photosynthesis is the process by which plants convert sunlight, water and carbon dioxide into glucose and oxygen. "
    "It takes place in the chloroplasts, where chlorophyll absorbs mostly blue and red light.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n",
    "In 1969 the first people landed on the Moon. Neil Armstrong and Buzz Aldrin spent two hours outside the lunar "
    "module, while Michael Collins stayed in orbit.",
    "To make a good omelette, beat three eggs with a pinch of salt, melt some butter in a pan on medium heat, pour in "
    "the eggs and stir gently until they begin to set.",
)
KEPT = reference.GROUP_OUTLIERS


def log_probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logits (rows, vocabulary) less the logarithm of their exponentials' sum."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def main() -> None:
    """Print the divergences as JSON."""
    checkpoint = open_checkpoint(resolve(None))
    tokenizer = tokenizer_from_gguf(checkpoint.metadata, str(checkpoint.path))
    graph, weights = build_graph(checkpoint), reference.ReferenceWeights()
    sequences = [tokenizer.encode(text, add_bos=True) for text in TEXTS]

    def outputs(lowered: Graph) -> list[NDArray[np.float64]]:
        results = []
        for tokens in sequences:
            cache = reference.ReferenceCache(lowered, weights=weights)
            logits = reference.run(lowered, tokens, cache, dtype=np.float32)
            results.append(log_probabilities(logits.astype(np.float64)))
        return results

    exact = outputs(lower(graph, lambda linear: None))
    rounded = lower(graph, lambda linear: 32)
    rows = []
    for kept in (0, 1, 2, KEPT):
        reference.GROUP_OUTLIERS = kept
        pairs = list(zip(exact, outputs(rounded), strict=True))
        divergences = np.concatenate([(np.exp(one) * (one - other)).sum(axis=1) for one, other in pairs])
        same = np.concatenate([one.argmax(axis=1) == other.argmax(axis=1) for one, other in pairs])
        row = {
            "outliers_kept_per_group": kept,
            "kl_divergence_mean": round(float(divergences.mean()), 6),
            "kl_divergence_median": round(float(np.median(divergences)), 6),
            "same_top_token": round(float(same.mean()), 4),
            "positions": len(divergences),
        }
        print(json.dumps(row), file=sys.stderr)
        rows.append(row)
    print(json.dumps({"model": checkpoint.path.name, "group": reference.ACTIVATION_GROUP, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
