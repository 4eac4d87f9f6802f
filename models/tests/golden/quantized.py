"""Quantized golden checkpoints in MLX's layout: made by mlx-lm's own quantization, answered by mlx-lm. Part of make.py.

The reference computes with the stored numbers: packed weights as they are, scales, biases and norms widened to float32 (exact),
float32 arithmetic on the CPU.
"""

import json
import tempfile
from importlib import metadata
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent

ROPE = {"rope_theta": 10000.0, "rope_scaling": None}

# Each differs from the other wherever published checkpoints differ. `paths`: what mlx-lm's predicate returns for a module, by path.
CHECKPOINTS = {
    # 4 bits, a quantized embedding that is the head too, bfloat16 scales. q, k and v of layer 1 have two formats; gate of layer 0
    # is not quantized.
    "qwen3-tiny-q4": {
        "sizes": {"vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 64, "tie_word_embeddings": True},
        "rope": ROPE,
        "dtype": ("torch_dtype", "bfloat16"),
        "shards": 1,
        "taps": [0, 1],
        "quantization": {"group_size": 64, "bits": 4},
        "paths": {"model.layers.1.self_attn.v_proj": {"group_size": 32, "bits": 8}, "model.layers.0.mlp.gate_proj": False},
    },
    # 8 bits in small groups, a quantized head of its own, the embedding left in float16.
    "qwen3-tiny-q8": {
        "sizes": {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "tie_word_embeddings": False},
        "rope": ROPE,
        "dtype": ("dtype", "float16"),
        "shards": 1,
        "taps": [0, 1],
        "quantization": {"group_size": 32, "bits": 8},
        "paths": {"model.embed_tokens": False},
    },
}


def quantize(source, folder, spec, stop_ids):
    """As `mlx_lm.convert -q` with a predicate."""
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(source)
    paths = spec["paths"]
    model, config = quantize_model(model, config, **spec["quantization"], quant_predicate=lambda path, _: paths.get(path, True))
    # mlx-lm leaves out what is not quantized; published checkpoints name it.
    config["quantization"].update({path: False for path, params in paths.items() if params is False})
    config["eos_token_id"] = stop_ids[0]
    save_model(folder, model)
    (folder / "model.safetensors").chmod(0o644)
    save_config(config, folder / "config.json")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stop_ids}) + "\n")


def load(folder):
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder)
    model.update(tree_map(lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a, model.parameters()))
    mx.eval(model.parameters())
    return model


def forward(model, ids, taps):
    """→ (logits, outputs of the tapped layers, after the final norm), all of the last row."""
    import mlx.core as mx
    from mlx_lm.models.base import create_attention_mask

    hidden, seen = model.model.embed_tokens(mx.array([ids])), {}
    mask = create_attention_mask(hidden, None)
    for at, layer in enumerate(model.model.layers):
        hidden = layer(hidden, mask, None)
        seen[at] = hidden
    final = model.model.norm(hidden[:, -1])
    head = model.model.embed_tokens.as_linear if model.args.tie_word_embeddings else model.lm_head
    return np.array(head(final)[0]), [np.array(seen[at][0, -1]) for at in taps], np.array(final[0])


def make_case(make, model, spec, prompt, forward=forward):
    """→ None if a choice is undecided or the answer repeats itself. `forward`: of the model's family."""
    import mlx.core as mx

    ids, margins, first = [], [], None
    while len(ids) < make.GREEDY_TOKENS:
        out = forward(model, prompt + ids, spec["taps"])
        if first is None:
            first = out
            assert np.abs(np.array(model(mx.array([prompt]))[0, -1]) - out[0]).max() < 1e-4, "the layers by hand are the model"
        best = np.sort(out[0])[-2:]
        ids.append(int(np.argmax(out[0])))
        margins.append(round(float(best[1] - best[0]), 5))
        if margins[-1] < make.LEAST_MARGIN or ids[-1] in make.STOP_IDS:
            return None
    if len(set(ids)) < make.LEAST_DISTINCT:
        return None
    return {"prompt": prompt, "logits": make.row(first[0]), "taps": [make.row(tap) for tap in first[1]],
            "final_hidden": make.row(first[2]), "greedy": ids, "margins": margins}


def make_cases(make, model, spec, seed, forward=forward):
    rng = np.random.default_rng(seed)
    found = []
    for length in make.PROMPT_LENGTHS:
        found.append(make_case(make, model, spec, rng.integers(2, spec["sizes"]["vocab_size"], length).tolist(), forward))
        if found[-1] is None:
            return None
    return found


def make_style(make, name, part, meaning, spec, write_floats, forward=forward):
    """The checkpoint and the golden file of one style. `part`: its name in make.py; `write_floats(folder, seed)` writes it in floats."""
    folder = HERE / name
    for seed in range(10_000):
        with tempfile.TemporaryDirectory() as source:
            write_floats(Path(source), seed)
            quantize(Path(source), folder, spec, make.STOP_IDS)
        found = make_cases(make, load(folder), spec, seed, forward)
        if found:
            break
    versions = {package: metadata.version(package) for package in ("mlx", "mlx-lm")}
    make.dump(folder.with_suffix(".json"), {
        "provenance": make.provenance(part, **make.reference_versions(), **versions),
        "checkpoint": f"models/tests/golden/{name}",
        "arithmetic": "mlx-lm on the CPU; weights as stored, scales, biases and norms widened to float32; float32 arithmetic",
        "seed": seed,
        "meaning": meaning,
        "tap_layers": spec["taps"],
        "cases": found,
    })


def make_quantized(make):
    """`make`: the module make.py, whose weights, bounds and provenance these have."""
    for name, spec in CHECKPOINTS.items():
        make_style(make, name, "quantized", make.TINY_MEANING, spec,
                   lambda folder, seed, spec=spec: make.write_tiny(folder, spec, make.tiny_weights(spec, seed)))
