#!/usr/bin/env bash
# Generation behind a long context; and the same in llama.cpp.
# depth.sh SHAPE LLAMA_PYTHON [BENCH OPTIONS]: options take the place of those here.
set -euo pipefail
results=$("$(dirname "$0")/results_folder.sh")
nybble bench --shape "$1" -p 0 -n 128 -r 3 -t 1,2 --depth 0,4096 --processes 6 \
  --against llama-cpp --peer-python "llama-cpp=$2" --save "$results/${1}_depth.json" "${@:3}"
