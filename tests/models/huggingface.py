"""The oracle of the architectures: the same tiny weights in transformers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .tiny import TinyModel, random_weights


def huggingface_logits(model: TinyModel, tokens: Sequence[int]) -> np.ndarray:
    """Logits (tokens, vocabulary) of transformers' implementation in fp32, eager attention."""
    import torch
    import transformers

    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    family = names[model.architecture]
    configuration = getattr(transformers, f"{family}Config")(
        num_hidden_layers=model.layers,
        hidden_size=model.hidden,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        intermediate_size=model.feed_forward,
        vocab_size=model.vocabulary,
        max_position_embeddings=model.context_length,
        rms_norm_eps=model.epsilon,
        rope_theta=model.rope_base,
        rope_scaling=dict(model.rope_scaling) if model.rope_scaling else None,
        tie_word_embeddings=model.tied,
        attention_bias="o" in model.biases,
        attn_implementation="eager",
    )
    oracle = getattr(transformers, f"{family}ForCausalLM")(configuration).eval()
    weights = {name: torch.from_numpy(value) for name, value in random_weights(model).items()}
    missing, unexpected = oracle.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    oracle.tie_weights()
    with torch.no_grad():
        return oracle(torch.tensor([list(tokens)])).logits[0].float().numpy()
