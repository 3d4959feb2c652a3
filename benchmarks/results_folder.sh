#!/usr/bin/env bash
# Makes and prints the folder for results on a machine like this one: results/ISA, ISA being the instruction set that
# nybble selects here, with NYBBLE_ISA unset.
set -euo pipefail
isa=$(env -u NYBBLE_ISA nybble probe --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["instruction_sets"]["selected"])')
folder=$(cd "$(dirname "$0")" && pwd)/results/$isa
mkdir -p "$folder"
echo "$folder"
