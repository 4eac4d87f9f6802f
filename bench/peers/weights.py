"""Bytes of weights that a token reads: all tensors of a file of a dense model, but of an embedding beside a head of its own only a row."""
import json, pathlib, struct

# Bytes of a value of GGUF's metadata by its type; a text and a list have their lengths before them.
SIMPLE = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, LIST, UINT32 = 8, 9, 4


def token_bytes(path):
    """Of a GGUF file, or of a folder of safetensors."""
    path = pathlib.Path(path)
    if path.is_file():
        return without_embedding(gguf(path), "token_embd.", "output.weight")
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise SystemExit(f"expected *.safetensors in {path}, found none")
    return without_embedding({name: size for file in files for name, size in safetensors(file).items()}, "embed_tokens.", "lm_head.weight")


def without_embedding(sizes, embedding, head):
    untied = any(f".{name}".endswith(f".{head}") for name in sizes)
    return sum(size for name, size in sizes.items() if not (untied and embedding in name))


def safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: end - begin for name, tensor in header.items() if "data_offsets" in tensor for begin, end in [tensor["data_offsets"]]}


def gguf(path):
    """Sizes of the tensors, from each one's begin to the next one's: at most an alignment (32 bytes) too large."""
    with open(path, "rb") as file:
        number = lambda form: struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0]
        text = lambda: file.read(number("Q")).decode(errors="replace")

        def skip(kind):
            if kind == TEXT:
                text()
            elif kind == LIST:
                inner, count = number("I"), number("Q")
                for _ in range(count if inner not in SIMPLE else 0):
                    skip(inner)
                file.seek(count * SIMPLE.get(inner, 0), 1)
            else:
                file.seek(SIMPLE[kind], 1)

        if file.read(4) != b"GGUF":
            raise SystemExit(f"expected a GGUF file, found {path}")
        number("I")
        tensors, entries, alignment, begins = number("Q"), number("Q"), 32, {}
        for _ in range(entries):
            key, kind = text(), number("I")
            if key == "general.alignment" and kind == UINT32:
                alignment = number("I")
            else:
                skip(kind)
        for _ in range(tensors):
            name, axes = text(), number("I")
            file.seek(8 * axes + 4, 1)  # shape, and type
            begins[name] = number("Q")
        data = -(-file.tell() // alignment) * alignment
    ends = [*sorted(begins.values())[1:], path.stat().st_size - data]
    return {name: end - begin for (name, begin), end in zip(sorted(begins.items(), key=lambda item: item[1]), ends)}
