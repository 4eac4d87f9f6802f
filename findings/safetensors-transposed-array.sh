#!/bin/sh
# A transposed NumPy array is saved with its numbers in another order, without an error.
#
# Packages:  safetensors 0.8.0 (the newest), safetensors 0.7.0; numpy 2.3.5
# Input:     safetensors.numpy.save of a transposed array, and of the same array after numpy.ascontiguousarray
# Expected:  the same file for both, as with 0.7.0, or an error, as safetensors.torch gives for such a tensor
# Seen:      0.8.0 writes the numbers in the order of memory beneath the shape of the view. Known since August 2026
#            (safetensors/safetensors issue 825); the newest release has it still
# Matters:   a converter that transposes weights and saves them makes a checkpoint that loads, with wrong weights
# Output:
#   0.7.0 transposed: [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] contiguous: [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
#   0.8.0 transposed: [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] contiguous: [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
set -eu
sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python=$folder/venv/bin/python

sed -n '/^# Output:/,/^set/s/^#   //p' "$0" >"$folder/expected"
for version in 0.7.0 0.8.0; do
    "$python" -m pip --quiet --disable-pip-version-check install "safetensors==$version" numpy==2.3.5 || exit 75
    "$python" - >>"$folder/seen" <<'END'
import numpy
import safetensors
from safetensors.numpy import load, save

array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3).T
again = {
    name: load(save({"weight": weight}))["weight"].tolist()
    for name, weight in {"transposed": array, "contiguous": numpy.ascontiguousarray(array)}.items()
}
print(safetensors.__version__, *(f"{name}: {numbers}" for name, numbers in again.items()))
END
done
printf 'Output of this run:\n'
cat "$folder/seen"
cmp "$folder/expected" "$folder/seen"
