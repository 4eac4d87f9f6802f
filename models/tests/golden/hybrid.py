"""Golden files of Qwen3.5, dense and with experts: from transformers, and quantized ones in MLX's layout from mlx-lm (quantized.py).

Part of make.py: `python models/tests/golden/make.py hybrid`. Checkpoints are tiny and random, in the layout of the published ones: a
text model under a wrapper, and layers that predict several tokens. Of the latter only a few numbers are there, and of the vision tower
that config.json names nothing, because the text model is what these files are about. Towers are in hybrid_vision.py.
"""

import json
import math

import numpy as np

import families
import make
import quantized
from make import HERE, STOP_IDS, dump, provenance, reference_versions

ROPE = {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
        "mrope_interleaved": True}
TEXT = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "attn_output_gate": True,
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
        "mamba_ssm_dtype": "float32", "rope_parameters": ROPE, "bos_token_id": None, "eos_token_id": STOP_IDS[0], "pad_token_id": None}
MOE = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2}
# Sizes of a vision tower without its tensors, as mlx-lm's conversions have them.
VISION = {"model_type": "qwen3_5", "depth": 1, "hidden_size": 16, "out_hidden_size": 32}

CHECKPOINTS = {
    # As Qwen3.5-4B: tied. The kinds of layers are written out; three value heads share a key head.
    "qwen3_5-tiny": ("qwen3_5", True, {
        **TEXT, "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "linear_num_value_heads": 6,
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"], "dtype": "bfloat16"}),
    # As Qwen3.6-35B-A3B: an own head, all experts of a layer in one tensor. The kinds of layers follow from the interval.
    "qwen3_5_moe-tiny": ("qwen3_5_moe", False, {
        **TEXT, **MOE, "vocab_size": 288, "hidden_size": 32, "num_hidden_layers": 3, "full_attention_interval": 3, "dtype": "bfloat16"}),
}

WIDE = {**TEXT, "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 3, "full_attention_interval": 2, "dtype": "bfloat16"}
MLX = "language_model.model.layers"
# mlx-lm keeps the router and the gate of the shared expert at 8 bits.
ROUTERS = {f"{MLX}.{layer}.mlp.{gate}": {"group_size": 64, "bits": 8} for layer in range(3) for gate in ("gate", "shared_expert_gate")}
QUANTIZED = {
    # Projections of one input in three formats; a gated attention whose queries are not quantized.
    "qwen3_5-tiny-q4": ("qwen3_5", True, {**WIDE, "intermediate_size": 64}, {"group_size": 64, "bits": 4},
                        {f"{MLX}.0.linear_attn.in_proj_z": {"group_size": 32, "bits": 8}, f"{MLX}.2.linear_attn.in_proj_b": False,
                         f"{MLX}.1.self_attn.q_proj": False}),
    "qwen3_5_moe-tiny-q4": ("qwen3_5_moe", False, {**WIDE, **MOE, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
                                                   "num_experts": 4}, {"group_size": 32, "bits": 4}, ROUTERS),
}


def kinds(config):
    usual = ["linear_attention" if (i + 1) % config.get("full_attention_interval", 4) else "full_attention"
             for i in range(config["num_hidden_layers"])]
    return config.get("layer_types", usual)


def random_weights(config, tied, seed):
    """Weights large enough that every part matters: norms away from their rest, decays from long to short, answers that do not
    repeat. In the layout of transformers."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    hidden, head = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value_heads, value = config["linear_num_value_heads"], config["linear_value_head_dim"]
    values, channels = value_heads * value, 2 * keys + value_heads * value
    out = {}

    def normal(*shape, gain=1.0):
        return torch.randn(*shape, generator=generator) * gain

    def linear(name, rows, cols, gain):
        out[name + ".weight"] = normal(rows, cols, gain=gain / math.sqrt(cols))

    def norm(name, size, center=0.0):
        out[name + ".weight"] = center + normal(size, gain=0.3)

    def gated(name, width):
        linear(name + ".gate_proj", width, hidden, 2.0)
        linear(name + ".up_proj", width, hidden, 1.5)
        linear(name + ".down_proj", hidden, width, 2.0)

    text = "model.language_model."
    out[text + "embed_tokens.weight"] = normal(config["vocab_size"], hidden, gain=0.5)
    for i, kind in enumerate(kinds(config)):
        p = f"{text}layers.{i}."
        norm(p + "input_layernorm", hidden)
        if kind == "linear_attention":
            a = p + "linear_attn."
            linear(a + "in_proj_qkv", channels, hidden, 2.0)
            linear(a + "in_proj_z", values, hidden, 1.5)
            linear(a + "in_proj_b", value_heads, hidden, 1.0)
            linear(a + "in_proj_a", value_heads, hidden, 1.0)
            out[a + "conv1d.weight"] = normal(channels, 1, config["linear_conv_kernel_dim"], gain=0.5)
            out[a + "A_log"] = -3.0 + 3.0 * torch.rand(value_heads, generator=generator)
            out[a + "dt_bias"] = normal(value_heads)
            norm(a + "norm", value, 1.0)
            linear(a + "out_proj", hidden, values, 2.0)
        else:
            a = p + "self_attn."
            linear(a + "q_proj", 2 * q, hidden, 1.5)
            linear(a + "k_proj", kv, hidden, 1.5)
            linear(a + "v_proj", kv, hidden, 2.0)
            linear(a + "o_proj", hidden, q, 2.0)
            norm(a + "q_norm", head, 0.5)
            norm(a + "k_norm", head)
        norm(p + "post_attention_layernorm", hidden)
        if "num_experts" in config:
            experts, width = config["num_experts"], config["moe_intermediate_size"]
            linear(p + "mlp.gate", experts, hidden, 1.5)
            out[p + "mlp.experts.gate_up_proj"] = normal(experts, 2 * width, hidden, gain=2.0 / math.sqrt(hidden))
            out[p + "mlp.experts.down_proj"] = normal(experts, hidden, width, gain=2.0 / math.sqrt(width))
            gated(p + "mlp.shared_expert", config["shared_expert_intermediate_size"])
            linear(p + "mlp.shared_expert_gate", 1, hidden, 1.5)
        else:
            gated(p + "mlp", config["intermediate_size"])
    norm(text + "norm", hidden)
    if not tied:
        linear("lm_head", config["vocab_size"], hidden, 3.0)
    stored = {name: tensor.to(torch.bfloat16) for name, tensor in out.items()}
    # Published checkpoints keep these in float32.
    stored.update({name: tensor for name, tensor in out.items() if name.endswith(("A_log", "linear_attn.norm.weight"))})
    return stored


def write_checkpoint(folder, model_type, tied, config, weights):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(part.capitalize() for part in model_type.replace("qwen3_5", "Qwen3-5").split("_")).replace("-", "_")
    whole = {"architectures": [f"{name}ForConditionalGeneration"], "model_type": model_type, "tie_word_embeddings": tied,
             "image_token_id": 3, "text_config": {"model_type": f"{model_type}_text", **config}, "vision_config": VISION}
    (folder / "config.json").write_text(json.dumps(whole, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOP_IDS}) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone


def unserved():
    """Tensors of parts that are not served, a few numbers each."""
    import torch

    names = ["mtp.fc.weight", "mtp.norm.weight"]
    return {name: torch.zeros(4, dtype=torch.bfloat16) for name in names}


def load_reference(model_type, tied, config, weights):
    """The text model as stored, its weights widened to float32."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

    of_config, of_model = {"qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM),
                           "qwen3_5_moe": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM)}[model_type]
    keys = {key: value for key, value in config.items() if key != "dtype"}
    text = of_config(**keys, tie_word_embeddings=tied, attn_implementation="eager")
    assert text.layer_types == kinds(config), text.layer_types
    model = of_model(text).eval().to(torch.float32)
    text_weights = {name.replace("model.language_model.", "model."): tensor.float() for name, tensor in weights.items()}
    missing, unexpected = model.load_state_dict(text_weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def make_hybrid_one(name, model_type, tied, config):
    import torch

    torch.set_num_threads(1)
    # What families.py asks of a config with experts.
    asked = {**config, "mlp_only_layers": [], "decoder_sparse_step": 1}
    for seed in range(10_000):
        weights = random_weights(config, tied, seed)
        cases = families.make_cases(load_reference(model_type, tied, config, weights), asked, seed)
        if cases is not None:
            break
    write_checkpoint(HERE / name, model_type, tied, config, {**weights, **unserved()})
    dump(HERE / f"{name}.json", {
        "provenance": provenance("hybrid", **reference_versions()),
        "checkpoint": f"models/tests/golden/{name}",
        "arithmetic": "weights stored as bfloat16, widened to float32; float32 arithmetic; eager attention; processor: CPU",
        "seed": seed,
        "meaning": families.MEANING,
        "tap_layers": [0, config["num_hidden_layers"] - 1],
        "cases": cases,
    })


def forward(model, ids, taps):
    """As quantized.forward, of a model whose layers are of two kinds."""
    import mlx.core as mx
    from mlx_lm.models.base import create_attention_mask

    text = model.language_model
    hidden, seen = text.model.embed_tokens(mx.array([ids])), {}
    mask = create_attention_mask(hidden, None)
    for at, layer in enumerate(text.model.layers):
        hidden = layer(hidden, None if layer.is_linear else mask, None)
        seen[at] = hidden
    final = text.model.norm(hidden[:, -1])
    head = text.model.embed_tokens.as_linear if text.args.tie_word_embeddings else text.lm_head
    return np.array(head(final)[0]), [np.array(seen[at][0, -1]) for at in taps], np.array(final[0])


def make_quantized_one(name, model_type, tied, config, quantization, paths):
    # mlx-lm reads whether the head is tied from the text model's config.
    config = {**config, "tie_word_embeddings": tied}
    spec = {"sizes": {"vocab_size": config["vocab_size"]}, "quantization": quantization, "paths": paths,
            "taps": [0, config["num_hidden_layers"] - 1]}
    quantized.make_style(make, name, "hybrid", families.MEANING, spec,
                         lambda folder, seed: write_checkpoint(folder, model_type, tied, config, random_weights(config, tied, seed)), forward)


def make_hybrid():
    for name, parts in CHECKPOINTS.items():
        make_hybrid_one(name, *parts)
    families.accept_unused_keyword()
    for name, parts in QUANTIZED.items():
        make_quantized_one(name, *parts)
