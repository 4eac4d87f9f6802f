#!/usr/bin/env python3
"""A checkpoint with random weights, of any size, to measure speed and memory where no real one is at hand.

    random-checkpoint.py DIRECTORY [--family qwen3|qwen3_5|gemma4] [--size tiny|100m|4b|8b] [--format bf16|q4] [--tokenizer demo/target] [--seed 0]
                         [--vocabulary N] [--repeats]

Geometry: qwen3 at 4b and 8b is Qwen3's, qwen3_5 at 4b and 8b is Qwen3.5-4B's and 9B's, gemma4 is Gemma 4's dense text with five sliding layers
to a full one (tiny and 100m alone), 100m has the family's shape with about a hundred million parameters. q4 is affine, 4 bits, groups of 64, in MLX's layout; bf16 is in Hugging Face's. The tokenizer is a copy, usually of a smaller
vocabulary: ids beyond it are never chosen. Values repeat every few million numbers. With --repeats the layers are computed and add nothing, and
the head is the embedding: a greedy answer is one token over and over, and any drafter of such a checkpoint drafts it right. Needs Python's
standard library alone.
"""
import argparse, array, functools, json, pathlib, random, shutil, struct

POOL = 1 << 20
GROUP = 64
SIZES = {
    ("qwen3", "tiny"): dict(h=256, i=512, n=2, nh=4, nk=2, d=64, v=8192, tied=True),
    ("qwen3", "100m"): dict(h=640, i=1792, n=14, nh=10, nk=5, d=64, v=32768, tied=True),
    ("qwen3", "4b"): dict(h=2560, i=9728, n=36, nh=32, nk=8, d=128, v=151936, tied=True),
    ("qwen3", "8b"): dict(h=4096, i=12288, n=36, nh=32, nk=8, d=128, v=151936, tied=False),
    ("gemma4", "tiny"): dict(h=256, i=512, n=6, nh=4, nk=2, d=64, v=8192, tied=True, full=dict(nk=1, d=128), window=128),
    ("gemma4", "100m"): dict(h=640, i=2048, n=12, nh=8, nk=4, d=64, v=32768, tied=True, full=dict(nk=1, d=128), window=1024),
    ("qwen3_5", "tiny"): dict(h=256, i=512, n=4, nh=4, nk=2, d=64, v=8192, tied=True, gk=2, gv=4, gd=64),
    ("qwen3_5", "100m"): dict(h=640, i=1792, n=12, nh=8, nk=2, d=64, v=32768, tied=True, gk=4, gv=8, gd=128),
    ("qwen3_5", "4b"): dict(h=2560, i=9216, n=32, nh=16, nk=4, d=256, v=248320, tied=True, gk=16, gv=32, gd=128),
    ("qwen3_5", "8b"): dict(h=4096, i=12288, n=32, nh=16, nk=4, d=256, v=248320, tied=False, gk=16, gv=32, gd=128),
}


def bf16(values):
    """The numbers' upper halves in float32."""
    words = array.array("I")
    words.frombytes(array.array("f", values).tobytes())
    return array.array("H", (word >> 16 for word in words)).tobytes()


@functools.cache
def constant(value):
    return bf16([value] * POOL)


class Writer:
    """Tensors of a safetensors file: the header is made first, then the bytes are written one tensor after another."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.normal = bf16([draw.gauss(0.0, 1.0) for _ in range(POOL)])
        self.scaled = {}
        self.draw = draw
        self.bits = draw.randbytes(2 * POOL)
        self.tensors, self.at = {}, 0
        self.parts = []

    def add(self, name, dtype, shape, part, begin=None):
        size = {"BF16": 2, "F32": 4, "U32": 4}[dtype]
        for axis in shape:
            size *= axis
        self.tensors[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.at, self.at + size]}
        self.at += size
        self.parts.append((part, size, self.draw.randrange(len(part) // 8) * 8 if begin is None else begin))

    def pool(self, scale):
        """Normal numbers of this deviation, in bfloat16."""
        if scale not in self.scaled:
            words = array.array("H")
            words.frombytes(self.normal)
            values = array.array("f")
            values.frombytes(array.array("I", (word << 16 for word in words)).tobytes())
            self.scaled[scale] = bf16([scale * value for value in values])
        return self.scaled[scale]

    def write(self, path):
        header = json.dumps(self.tensors).encode()
        header += b" " * (-len(header) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for part, size, begin in self.parts:
                while size > 0:
                    piece = part[begin:begin + size]
                    file.write(piece)
                    size, begin = size - len(piece), 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--family", choices=["qwen3", "qwen3_5", "gemma4"], default="qwen3")
    parser.add_argument("--size", choices=["tiny", "100m", "4b", "8b"], default="100m")
    parser.add_argument("--format", choices=["bf16", "q4"], default="bf16")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent / "demo/target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocabulary", type=int, help="tokens of the model, instead of the size's own")
    parser.add_argument("--repeats", action="store_true")
    arguments = parser.parse_args()
    g = dict(SIZES[arguments.family, arguments.size])
    g["v"] = arguments.vocabulary or g["v"]
    if (arguments.family, arguments.size) not in SIZES:
        parser.error(f"expected a size of {arguments.family}, found {arguments.size}")
    hybrid, gemma, q4 = arguments.family == "qwen3_5", arguments.family == "gemma4", arguments.format == "q4"
    out = Writer(arguments.seed)
    # Of Qwen3.5's norms Hugging Face's layout stores w of 1 + w.
    norm_value = 0.0 if hybrid and not q4 else 1.0

    def norm(name, length):
        out.add(name + ".weight", "BF16", [length], constant(norm_value))

    def linear(name, rows, columns):
        scale = columns ** -0.5
        if arguments.repeats and name.endswith(("o_proj", "out_proj", "down_proj")):
            scale = 0.0
        # The head of --repeats is the embedding.
        begin = 0 if arguments.repeats and name.endswith(("embed_tokens", "lm_head")) else None
        if not q4:
            out.add(name + ".weight", "BF16", [rows, columns], out.pool(scale), begin)
            return
        step = scale / 4.6 # the deviation of 0 to 15, each as likely
        out.add(name + ".weight", "U32", [rows, columns // 8], out.bits, begin)
        out.add(name + ".scales", "BF16", [rows, columns // GROUP], constant(step))
        out.add(name + ".biases", "BF16", [rows, columns // GROUP], constant(-7.5 * step))

    text = ("language_model.model." if q4 else "model.language_model.") if hybrid else "model."
    head = ("language_model." if q4 else "") if hybrid else ""
    h, d, nh, nk = g["h"], g["d"], g["nh"], g["nk"]
    linear(text + "embed_tokens", g["v"], h)
    every, other = (4, "linear_attention") if hybrid else (6, "sliding_attention") if gemma else (1, "")
    kinds = ["full_attention" if at % every == every - 1 else other for at in range(g["n"])]
    for at, kind in enumerate(kinds):
        layer = f"{text}layers.{at}."
        norm(layer + "input_layernorm", h)
        norm(layer + "post_attention_layernorm", h)
        if kind != "linear_attention":
            part, values_are_keys = layer + "self_attn.", gemma and kind == "full_attention"
            nk, d = (g["full"]["nk"], g["full"]["d"]) if values_are_keys else (g["nk"], g["d"])
            linear(part + "q_proj", nh * d * (2 if hybrid else 1), h)
            linear(part + "k_proj", nk * d, h)
            if not values_are_keys:
                linear(part + "v_proj", nk * d, h)
            linear(part + "o_proj", h, nh * d)
            norm(part + "q_norm", d)
            norm(part + "k_norm", d)
        else:
            part, keys, values = layer + "linear_attn.", g["gk"] * g["gd"], g["gv"] * g["gd"]
            width = 2 * keys + values
            linear(part + "in_proj_qkv", width, h)
            linear(part + "in_proj_z", values, h)
            linear(part + "in_proj_a", g["gv"], h)
            linear(part + "in_proj_b", g["gv"], h)
            out.add(part + "conv1d.weight", "BF16", [width, 4, 1] if q4 else [width, 1, 4], out.pool(0.5))
            out.add(part + "A_log", "F32", [g["gv"]], bytes(4 * g["gv"]))
            out.add(part + "dt_bias", "BF16", [g["gv"]], constant(-3.0))
            out.add(part + "norm.weight", "F32", [g["gd"]], array.array("f", [1.0] * g["gd"]).tobytes())
            linear(part + "out_proj", h, values)
        if gemma:
            norm(layer + "pre_feedforward_layernorm", h)
            norm(layer + "post_feedforward_layernorm", h)
            out.add(layer + "layer_scalar", "BF16", [1], constant(1.0))
        linear(layer + "mlp.gate_proj", g["i"], h)
        linear(layer + "mlp.up_proj", g["i"], h)
        linear(layer + "mlp.down_proj", h, g["i"])
    norm(text + "norm", h)
    if not g["tied"]:
        linear(head + "lm_head", g["v"], h)

    config = {
        "model_type": arguments.family + ("_text" if hybrid or gemma else ""), "vocab_size": g["v"], "hidden_size": h, "intermediate_size": g["i"],
        "num_hidden_layers": g["n"], "num_attention_heads": nh, "num_key_value_heads": nk, "head_dim": d, "tie_word_embeddings": g["tied"],
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "eos_token_id": 0,
        "dtype": "bfloat16",
    }
    if hybrid:
        config |= {
            "layer_types": kinds, "linear_num_key_heads": g["gk"], "linear_num_value_heads": g["gv"], "linear_key_head_dim": g["gd"],
            "linear_value_head_dim": g["gd"], "linear_conv_kernel_dim": 4, "attn_output_gate": True, "mamba_ssm_dtype": "float32",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                                "mrope_section": [11, 11, 10] if d == 256 else [d // 24 + d // 8 - 3 * (d // 24), d // 24, d // 24]},
        }
    elif gemma:
        config |= {
            "layer_types": kinds, "sliding_window": g["window"], "global_head_dim": g["full"]["d"], "num_global_key_value_heads": g["full"]["nk"],
            "attention_k_eq_v": True, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh", "head_dim": g["d"],
            "num_key_value_heads": g["nk"], "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
            "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}},
        }
    else:
        config |= {"rope_theta": 1e6, "rope_scaling": None, "use_sliding_window": False}
    if q4:
        config["quantization"] = {"group_size": GROUP, "bits": 4, "mode": "affine"}
    arguments.directory.mkdir(parents=True, exist_ok=True)
    (arguments.directory / "config.json").write_text(json.dumps(config, indent=1))
    for file in arguments.tokenizer.glob("*token*.json"):
        shutil.copy(file, arguments.directory / file.name)
    generation = arguments.tokenizer / "generation_config.json"
    if generation.exists():
        shutil.copy(generation, arguments.directory / generation.name)
    out.write(arguments.directory / "model.safetensors")
    print(f"{arguments.directory}: {out.at / 1e6:.0f} MB")


main()
