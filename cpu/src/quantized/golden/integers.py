"""Products of 8-bit integers in numpy, from their definition (cpu/src/kernel/integer/mod.rs), for every format: writes integers.txt.

    python3 integers.py

Nothing of it follows the order in which the kernels lay out numbers. Inputs are made by a formula that the test repeats, so the file
holds the bits of the results alone. Float operations are in float32, one rounding each.
"""
import pathlib
import numpy as np

ROWS, OUTPUTS, GROUPS = 3, 16, 3
F = np.float32


def mixed(seed, count):
    """Integers of 32 bits that look random (the finalizer of MurmurHash3)."""
    n = (np.arange(count, dtype=np.uint64) + np.uint64(seed * 1_000_003)) * np.uint64(0x9E3779B9) & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        n = (n ^ n >> np.uint64(shift)) * np.uint64(factor) & np.uint64(0xFFFFFFFF)
    return n


def floats(seed, count):
    """From -1 to 1, exactly as many bits as a float has."""
    return F((mixed(seed, count) >> np.uint64(8)).astype(F) / F(1 << 23) - F(1))


def fused(a, b, c):
    """a * b + c, rounded once. The product is exact in float64. Where the sum was rounded to the middle of two float32, it is moved towards
    what was cut off, so that the second rounding goes the right way."""
    a, b, c = (np.asarray(x, np.float64) for x in (a, b, c))
    product, total = a * b, a * b + c
    of_c = total - product
    rest = (product - (total - of_c)) + (c - of_c)
    middle = total.view(np.uint64) & np.uint64(0x1FFFFFFF) == np.uint64(0x10000000)
    return F(np.where(middle & (rest != 0), np.nextafter(total, np.where(rest > 0, np.inf, -np.inf)), total))


def product(bits, group):
    inputs, block = GROUPS * group, min(group, 64)
    words = mixed(1, OUTPUTS * inputs // 32 * bits).reshape(OUTPUTS, -1)
    numbers = np.zeros((OUTPUTS, inputs), np.int64)
    for at in range(inputs):
        for bit in range(bits):
            place = at * bits + bit
            numbers[:, at] |= ((words[:, place // 32] >> np.uint64(place % 32) & np.uint64(1)) << np.uint64(bit)).astype(np.int64)
    scales, biases = (floats(seed, OUTPUTS * GROUPS).reshape(OUTPUTS, GROUPS) for seed in (2, 3))
    x = floats(4, ROWS * inputs).reshape(ROWS, inputs)
    sums = np.zeros((ROWS, OUTPUTS), F)
    for first in range(0, inputs, block):
        part, of = x[:, first:first + block], first // group
        largest = np.abs(part).max(axis=1, keepdims=True)
        rounded = np.rint(part * (F(127) / largest)).astype(np.int64)
        dots = (rounded @ numbers[:, first:first + block].T).astype(F)
        total = rounded.sum(axis=1, keepdims=True).astype(F)
        sums = fused(largest / F(127), fused(total, biases[:, of], dots * scales[:, of]), sums)
    assert sums.dtype == F
    return sums


if __name__ == "__main__":
    lines = []
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            numbers = product(bits, group).ravel().view(np.uint32)
            lines.append(f"{bits} {group} " + " ".join(f"{number:08x}" for number in numbers))
    (pathlib.Path(__file__).parent / "integers.txt").write_text("\n".join(lines) + "\n")
