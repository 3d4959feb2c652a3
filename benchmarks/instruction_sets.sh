#!/usr/bin/env bash
# The same random model with each instruction set of this CPU, the best first.
# instruction_sets.sh SHAPE "ISA..." [BENCH OPTIONS]: for example instruction_sets.sh qwen2.5-0.5b "avx512_vnni avx2";
# options take the place of those here.
set -euo pipefail
shape=$1
results=$("$(dirname "$0")/results_folder.sh")
for isa in $2; do
  NYBBLE_ISA=$isa nybble bench --shape "$shape" -p 512 -n 128 -r 3 -t 1,2 --processes 6 \
    --save "$results/${shape}_$isa.json" "${@:3}"
done
