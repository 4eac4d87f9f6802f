"""Reads a GGUF file (version 3, little-endian): its metadata and where its tensors are.

Layout: magic, version, two counts, key-value pairs, tensor entries, padding, data. Source: the
format's description in ggml's repository, docs/gguf.md.
"""

import struct

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32  # unless general.alignment says otherwise
MOST_DIMENSIONS = 4

# Types of metadata values: struct's letter of each fixed-size type.
FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

# Types of tensors: name, values of a block, bytes of a block.
F32, Q4_1, Q8_0 = "F32", "Q4_1", "Q8_0"
TENSOR_TYPES = {0: (F32, 1, 4), 3: (Q4_1, 32, 20), 8: (Q8_0, 32, 34)}


class FormatError(Exception):
    """The file is not what this reader expects: what was expected and what was found."""


class Tensor:
    """One tensor: rows of `columns` values of type `kind`, as bytes of the file."""

    def __init__(self, kind, rows, columns, data):
        self.kind, self.rows, self.columns, self.data = kind, rows, columns, data

    def row_bytes(self):
        return len(self.data) // self.rows


class Reader:
    """A cursor over the file's bytes that never reads behind their end."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        if length > len(self.data) - self.at:
            raise FormatError(
                f"expected {length} bytes at offset {self.at} of {len(self.data)}, found the end"
            )
        self.at += length
        return self.data[self.at - length : self.at]

    def fixed(self, letter):
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]

    def string(self):
        return str(self.take(self.fixed("Q")), "utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            of, count = self.fixed("I"), self.fixed("Q")
            return [self.value(of) for _ in range(count)]
        if kind not in FIXED:
            raise FormatError(
                f"expected a metadata type from 0 to 12, found {kind} before offset {self.at}"
            )
        return self.fixed(FIXED[kind])


def read(data):
    """The metadata and the tensors by name of a GGUF file, which is given as bytes."""
    reader = Reader(memoryview(data))
    magic, version = bytes(reader.take(4)), reader.fixed("I")
    if (magic, version) != (MAGIC, VERSION):
        raise FormatError(
            f"expected a GGUF file of version {VERSION}, found {magic!r} and {version}"
        )
    n_tensors, n_pairs = reader.fixed("Q"), reader.fixed("Q")
    metadata = {}
    for _ in range(n_pairs):
        key = reader.string()
        metadata[key] = reader.value(reader.fixed("I"))
    entries = [entry(reader) for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", ALIGNMENT)
    start = -(-reader.at // alignment) * alignment
    return metadata, {name: tensor(reader, start, *rest) for name, *rest in entries}


def entry(reader):
    """One entry of the list of tensors: name, shape (the inner dimension first), type, offset."""
    name, dimensions = reader.string(), reader.fixed("I")
    if dimensions > MOST_DIMENSIONS:
        raise FormatError(
            f"tensor {name}: expected at most {MOST_DIMENSIONS} dimensions, found {dimensions}"
        )
    shape = [reader.fixed("Q") for _ in range(dimensions)]
    return name, shape, reader.fixed("I"), reader.fixed("Q")


def tensor(reader, start, shape, kind, offset):
    """The tensor of an entry. A vector is one row."""
    if kind not in TENSOR_TYPES:
        known = ", ".join(f"{number} ({name})" for number, (name, _, _) in TENSOR_TYPES.items())
        raise FormatError(f"expected a tensor type of {known}, found {kind}")
    name, values, size = TENSOR_TYPES[kind]
    columns, rows = shape[0], 1
    for length in shape[1:]:
        rows *= length
    if columns % values:
        raise FormatError(
            f"expected rows of a multiple of {values} values for {name}, found {columns}"
        )
    reader.at = start + offset
    return Tensor(name, rows, columns, reader.take(rows * columns // values * size))
