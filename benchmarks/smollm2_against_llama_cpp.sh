#!/usr/bin/env bash
# SmolLM2-135M-Instruct (Q4_1, the default model) here and in llama.cpp, on the same file, interleaved process by process.
# smollm2_against_llama_cpp.sh PEER_PYTHON: a Python that has llama-cpp-python.
set -euo pipefail
results=$("$(dirname "$0")/results_folder.sh")
nybble bench -p 512 -n 128 -r 3 -t 1,2 --processes 6 --against llama-cpp --peer-python "llama-cpp=$1" \
  --save "$results/smollm2_against_llama_cpp.json"
