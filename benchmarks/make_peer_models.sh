#!/usr/bin/env bash
# Makes what other engines need of the default model: its weights as each of them quantises them best.
# make_peer_models.sh MODELS LLAMA_PYTHON PEERS_PYTHON: where to; a Python that has llama-cpp-python, and one that has
# torch, transformers, accelerate, gguf, onnx, onnx_ir, onnxruntime-genai, ctranslate2, yaspin, and llmexport as `pip
# install --no-deps` brings it.
set -euo pipefail
models=$(realpath -m "$1")
peers=$(realpath -s "$3")  # not its target: that would leave the environment
mkdir -p "$models"
gguf=$(nybble models fetch smollm2-135m)

# llama.cpp and OpenVINO: all of it in Q4_0, the type that llama.cpp has its fastest kernels for.
"$2" - "$gguf" "$models/smollm2-135m-q4_0.gguf" << 'PYTHON'
import sys

import llama_cpp

parameters = llama_cpp.llama_model_quantize_default_params()
parameters.ftype = 2  # LLAMA_FTYPE_MOSTLY_Q4_0
parameters.pure = True  # the output head too
parameters.allow_requantize = True
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), parameters))
PYTHON

# The others start from a folder of transformers.
"$peers" "$(dirname "$0")/gguf_to_transformers.py" "$gguf" "$models/transformers"
# Without prune_lm_head it would compute the logits of every token of a prompt.
"$peers" -m onnxruntime_genai.models.builder -i "$models/transformers" -o "$models/onnxruntime" -p int4 -e cpu \
  -c "$models/cache" --extra_options block_size=32 accuracy_level=4 prune_lm_head=true
"$(dirname "$peers")/ct2-transformers-converter" --model "$models/transformers" --quantization int8 --force \
  --output_dir "$models/ctranslate2"
exporter=$("$peers" -c 'import importlib.util; print(importlib.util.find_spec("llmexport").submodule_search_locations[0])')
(cd "$exporter" && PYTHONPATH=$exporter "$peers" llmexport.py --path "$models/transformers" --export mnn --quant_bit 4 \
  --quant_block 32 --dst_path "$models/mnn")
