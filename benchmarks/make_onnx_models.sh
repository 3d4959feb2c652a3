#!/usr/bin/env bash
# Makes the models that onnxruntime_kernels.py, onnx_accuracy.py and onnx_walkthrough.py run, with the model builder of
# ONNX Runtime GenAI. make_onnx_models.sh MODELS PYTHON: where to; a Python with torch, transformers, accelerate, gguf,
# onnx, onnx_ir and onnxruntime-genai. Makes MODELS/transformers/smollm2 and MODELS/smollm2 (the default model's
# weights), the same without accuracy_level in MODELS/smollm2-level0, and MODELS/qwen2.5-0.5b-block{32,128} (a shape
# with random weights: speed does not depend on them).
set -euo pipefail
models=$(realpath -m "$1")
python=$(realpath -s "$2")  # not its target: that would leave the environment
mkdir -p "$models"
gguf=$(nybble models fetch smollm2-135m)
"$python" "$(dirname "$0")/gguf_to_transformers.py" "$gguf" "$models/transformers/smollm2"
"$python" - "$models/transformers/smollm2" "$models/transformers/qwen2.5-0.5b" << 'PYTHON'
import sys

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

shape = Qwen2Config(
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    vocab_size=151936,
    max_position_embeddings=32768,
    rope_theta=1e6,
    tie_word_embeddings=True,
)
Qwen2ForCausalLM(shape).to(torch.bfloat16).save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
PYTHON
build() {  # NAME OUT BLOCK LEVEL
  "$python" -m onnxruntime_genai.models.builder -i "$models/transformers/$1" -o "$models/$2" -p int4 -e cpu \
    -c "$models/cache" --extra_options "block_size=$3" "accuracy_level=$4"
}
build smollm2 smollm2 32 4
build smollm2 smollm2-level0 32 0
build qwen2.5-0.5b qwen2.5-0.5b-block32 32 4
build qwen2.5-0.5b qwen2.5-0.5b-block128 128 4
