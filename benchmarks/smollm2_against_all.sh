#!/usr/bin/env bash
# SmolLM2-135M-Instruct here and in five other engines, each with the best 4-bit model (CTranslate2: 8-bit) it can make
# of the same weights, interleaved process by process.
# smollm2_against_all.sh MODELS LLAMA_PYTHON PEERS_PYTHON [BENCH OPTIONS]: what make_peer_models.sh made; a Python that has
# llama-cpp-python, and one that has openvino-genai, onnxruntime-genai, ctranslate2 and MNN.
set -euo pipefail
results=$("$(dirname "$0")/results_folder.sh")
peers=()
for engine in openvino-genai onnxruntime-genai ctranslate2 mnn; do peers+=(--peer-python "$engine=$3"); done
nybble bench -p 512 -n 128 -r 3 -t 1,2 --processes 6 \
  --against llama-cpp,openvino-genai,onnxruntime-genai,ctranslate2,mnn --peer-python "llama-cpp=$2" "${peers[@]}" \
  --peer-model "llama-cpp=$1/smollm2-135m-q4_0.gguf" --peer-model "openvino-genai=$1/smollm2-135m-q4_0.gguf" \
  --peer-model "onnxruntime-genai=$1/onnxruntime" --peer-model "ctranslate2=$1/ctranslate2" \
  --peer-model "mnn=$1/mnn/config.json" --save "$results/smollm2_against_all.json" "${@:4}"
