#!/bin/sh
# Trains a pair like the embedded one: $STEPS steps of the recipe's 2200, into target/demo-train.
set -eu
. "$(dirname -- "$0")/lib.sh"

out=$(target_dir)/demo-train
sh scripts/venv.sh
.venv-data/bin/python demo/train.py --out "$out" --steps "${STEPS:?how many steps of 4096 tokens}"
say "A pair after $STEPS steps of training is in $out."
