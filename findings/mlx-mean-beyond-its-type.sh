#!/bin/sh
# The mean of equal numbers is zero, infinite, or another number.
#
# Packages:  mlx 0.32.4 with its backend for processors (the newest), numpy 2.3.5
# Input:     mean and variance of arrays that hold one number several times. Each number fits its type well
# Expected:  the number and a variance of zero. numpy.mean is right for each of its types, because it sums in wider ones
# Seen:      mx.mean sums int32 in int32, which wraps: eight times 2^30 has the mean 0. It sums float16 in float16:
#            four times 30,000 has the mean inf. bfloat16 is divided in bfloat16: 300 times 100 has the mean 99.5.
#            mx.var and mx.std begin with this mean, so equal numbers vary. int8, int16, int64 and float32 are right
# Matters:   statistics of activations in 16 bits, such as the norms and losses that a quantizer compares
# Output:
#   int32      8 times 1073741824   mlx: mean 0.0      variance 1.1529e+18   numpy: mean 1073741824.0
#   float16    4 times 30000        mlx: mean inf      variance inf          numpy: mean 30000.0
#   bfloat16   300 times 100        mlx: mean 99.5     variance 0.24902      (no bfloat16 in numpy)
#   int16      300 times 30000      mlx: mean 30000.0  variance 0            numpy: mean 30000.0
#   float32    300 times 100        mlx: mean 100.0    variance 0            numpy: mean 100.0
set -eu
sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip --quiet --disable-pip-version-check install 'mlx[cpu]==0.32.4' numpy==2.3.5 || exit 75

sed -n '/^# Output:/,/^set/s/^#   //p' "$0" >"$folder/expected"
"$python" - >"$folder/seen" <<'END'
import mlx.core as mx
import numpy

mx.set_default_device(mx.cpu)
for kind, times, number in [
    ("int32", 8, 2**30),
    ("float16", 4, 30_000),
    ("bfloat16", 300, 100),
    ("int16", 300, 30_000),
    ("float32", 300, 100),
]:
    array = mx.full((times,), number, dtype=getattr(mx, kind))
    mean, variance = mx.mean(array).item(), mx.var(array).item()
    expected = "(no bfloat16 in numpy)"
    if kind != "bfloat16":
        expected = f"numpy: mean {numpy.mean(numpy.full(times, number, dtype=kind)):.1f}"
    print(f"{kind:10} {f'{times} times {number}':20} mlx: mean {mean:<8.1f} variance {variance:<12.5g} {expected}")
END
printf 'Output of this run:\n'
cat "$folder/seen"
cmp "$folder/expected" "$folder/seen"
