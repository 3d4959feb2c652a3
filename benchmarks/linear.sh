#!/usr/bin/env bash
# One linear with the best instruction set's kernels, in several formats, from one row to a whole prompt.
# linear.sh [BENCH OPTIONS]: options take the place of those here.
set -euo pipefail
results=$("$(dirname "$0")/results_folder.sh")
isa=$(basename "$results")
for sizes in "2048 6144" "896 4864"; do
  read -r features outputs <<< "$sizes"
  for format in "4 32" "4 32 --asym" "4 64" "4 128" "8 32" "8 128"; do
    read -r bits block asymmetric <<< "$format"
    NYBBLE_ISA=$isa nybble bench --op linear -M 1,2,4,8,16,128,512 -K "$features" -N "$outputs" --bits "$bits" \
      --block "$block" ${asymmetric:+"$asymmetric"} -t 1,2 -r 5 --processes 6 \
      --save "$results/linear_${features}x${outputs}_w${bits}_block$block${asymmetric:+_asymmetric}.json" "$@"
  done
done
