#!/usr/bin/env python3
"""Writes blocks.json: digests of the numbers that the package gguf computes of random blocks of each type.

It needs `pip install gguf==0.19.0 numpy`. tests/blocks.rs makes the same bytes and compares.
"""

import hashlib
import json
import os

import gguf
import numpy

# Bytes of blocks of each type, and where their scales and offsets are: float16, or the number itself.
TYPES = {
    "F32": (4, [2]),
    "F16": (2, [0]),
    "BF16": (2, [0]),
    "Q4_0": (18, [0]),
    "Q4_1": (20, [0, 2]),
    "Q5_0": (22, [0]),
    "Q5_1": (24, [0, 2]),
    "Q8_0": (34, [0]),
    "Q4_K": (144, [0, 2]),
    "Q5_K": (176, [0, 2]),
    "Q6_K": (210, [208]),
}
BLOCKS = 512


def random_bytes(count):
    """Knuth's MMIX generator, the upper byte of each state."""
    state, found = 1, bytearray()
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        found.append(state >> 56)
    return found


def main():
    digests = {}
    for name, (size, floats) in TYPES.items():
        data = random_bytes(size * BLOCKS)
        for block in range(BLOCKS):
            for at in floats:
                # Without one bit of the exponent the number is finite.
                data[block * size + at + 1] &= 0xBF
        kind = gguf.GGMLQuantizationType[name]
        values = gguf.dequantize(numpy.frombuffer(bytes(data), numpy.uint8), kind)
        digests[name] = hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()
    value = {"library": "gguf 0.19.0", "blocks": BLOCKS, "sha256": digests}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


main()
