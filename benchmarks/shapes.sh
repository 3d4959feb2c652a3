#!/usr/bin/env bash
# A published architecture with random weights, in several formats, against engines that read GGUF files.
# shapes.sh SHAPE LLAMA_PYTHON OPENVINO_PYTHON [BENCH OPTIONS]: Pythons that have llama-cpp-python and openvino-genai;
# options of `nybble bench`, such as --processes 3, take the place of those here.
set -euo pipefail
shape=$1 llama=$2 openvino=$3
options=("${@:4}")
results=$("$(dirname "$0")/results_folder.sh")
measure() {
  nybble bench --shape "$shape" -p 512 -n 128 -r 3 -t 1,2 --processes 6 --save "$results/${shape}_$1.json" \
    "${@:2}" "${options[@]}"
}
peers=(--against llama-cpp,openvino-genai --peer-python "llama-cpp=$llama" --peer-python "openvino-genai=$openvino")
measure w4_block32 --bits 4 --block 32 "${peers[@]}"
measure w4_block32_asymmetric --bits 4 --block 32 --asym "${peers[@]}"
measure w8_block32 --bits 8 --block 32 "${peers[@]}"
# GGUF has no such blocks.
measure w4_block128 --bits 4 --block 128
measure w8_block128 --bits 8 --block 128
