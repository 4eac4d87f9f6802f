"""Golden files of the families beside Qwen3 (Llama, Qwen2, Qwen3 with experts), and of rotary frequencies, from transformers.

Part of make.py: `python models/tests/golden/make.py families`. Checkpoints are tiny and random; each differs from the others wherever
published checkpoints differ.
"""

import json
import math

import numpy as np

from make import (GREEDY_TOKENS, HERE, LEAST_DISTINCT, LEAST_MARGIN, PROMPT_LENGTHS, STOP_IDS, TINY_MEANING, dump, greedy,
                  load_reference, provenance, reference_versions, row)

CONTEXT = 512
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
# A golden answer is taken when no row's choice of experts is closer than this (probability of the last one taken minus the next).
LEAST_ROUTING_MARGIN = 2e-5

MEANING = {
    **TINY_MEANING,
    "least_routing_margin": "over all rows and layers: probability of the last expert taken minus that of the next",
}

FAMILIES = {
    # As Llama 3.1: scaled rotary frequencies in the old keys, grouped heads, an own head, no bias, no head_dim.
    "llama-tiny": {
        "config": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 200, "hidden_size": 48,
                   "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 72,
                   "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5,
                   "rope_theta": 10000.0, "rope_scaling": LLAMA3, "torch_dtype": "bfloat16"},
    },
    # As SmolLM2: three query heads a KV head, tied, no scaling. With every bias the family can have, and a head_dim of its own.
    "llama-tiny-tied": {
        "config": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 208, "hidden_size": 48,
                   "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12,
                   "intermediate_size": 64, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
                   "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}, "dtype": "float16"},
    },
    # As Mistral 7B of September 2023: every row attends to a window.
    "mistral-tiny": {
        "config": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 184, "hidden_size": 48,
                   "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 64,
                   "tie_word_embeddings": False, "sliding_window": 24, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                   "torch_dtype": "bfloat16"},
    },
    # As SmolLM3: the heads of the last of four layers do not rotate; grouped heads, tied, which no key says.
    "smollm3-tiny": {
        "config": {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "vocab_size": 176, "hidden_size": 48,
                   "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
                   "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-6, "no_rope_layer_interval": 4,
                   "no_rope_layers": [1, 1, 1, 0], "use_sliding_window": False, "layer_types": ["full_attention"] * 4,
                   "rope_theta": 5000000.0, "torch_dtype": "bfloat16"},
    },
    # As Qwen2.5: biases of q, k and v that no key names; windows that are off.
    "qwen2-tiny": {
        "config": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 216, "hidden_size": 40,
                   "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1, "intermediate_size": 64,
                   "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 64, "max_window_layers": 1,
                   "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "torch_dtype": "bfloat16"},
    },
    # As Qwen3-30B-A3B, with a dense layer among those with experts.
    "qwen3-moe-tiny": {
        "config": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 192, "hidden_size": 40,
                   "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                   "intermediate_size": 56, "moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2,
                   "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1], "tie_word_embeddings": False,
                   "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000000.0, "rope_scaling": None,
                   "torch_dtype": "bfloat16"},
    },
    # Experts in every second layer, three of five a row, whose shares do not add up to 1; biases.
    "qwen3-moe-tiny-sparse": {
        "config": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 160, "hidden_size": 32,
                   "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 20,
                   "intermediate_size": 40, "moe_intermediate_size": 16, "num_experts": 5, "num_experts_per_tok": 3,
                   "norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [], "tie_word_embeddings": True,
                   "attention_bias": True, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                   "dtype": "float32"},
    },
}


def full_config(config):
    return {**config, "max_position_embeddings": CONTEXT, "hidden_act": "silu", "attention_dropout": 0.0, "use_cache": True,
            "bos_token_id": None, "eos_token_id": STOP_IDS[0], "pad_token_id": None}


def dtype_of(config):
    return config.get("dtype") or config["torch_dtype"]


def has_experts(config, layer):
    return ("num_experts" in config and layer not in config["mlp_only_layers"]
            and (layer + 1) % config["decoder_sparse_step"] == 0)


def random_weights(config, seed):
    """Weights large enough that every part matters: norms away from 1, attention away from uniform, answers that do not repeat."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    family, hidden = config["model_type"], config["hidden_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    out = {}

    def linear(name, rows, cols, gain, bias=False):
        out[name + ".weight"] = torch.randn(rows, cols, generator=generator) * (gain / math.sqrt(cols))
        if bias:
            out[name + ".bias"] = 0.5 * torch.randn(rows, generator=generator)

    def norm(name, size, gain=1.0):
        out[name + ".weight"] = gain * (1.0 + 0.3 * torch.randn(size, generator=generator))

    def gated(name, width, bias=False):
        linear(name + ".gate_proj", width, hidden, 2.0, bias)
        linear(name + ".up_proj", width, hidden, 1.5, bias)
        linear(name + ".down_proj", hidden, width, 2.0, bias)

    output_bias = config.get("attention_bias", False)
    qkv_bias = output_bias or family == "qwen2"
    out["model.embed_tokens.weight"] = torch.randn(config["vocab_size"], hidden, generator=generator) * 0.5
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        norm(p + "input_layernorm", hidden)
        linear(p + "self_attn.q_proj", q, hidden, 1.5, qkv_bias)
        linear(p + "self_attn.k_proj", kv, hidden, 1.5, qkv_bias)
        linear(p + "self_attn.v_proj", kv, hidden, 2.0, qkv_bias)
        linear(p + "self_attn.o_proj", hidden, q, 2.0, output_bias)
        if family == "qwen3_moe":
            norm(p + "self_attn.q_norm", head, 1.5)
            norm(p + "self_attn.k_norm", head)
        norm(p + "post_attention_layernorm", hidden)
        if has_experts(config, i):
            linear(p + "mlp.gate", config["num_experts"], hidden, 1.5)
            for expert in range(config["num_experts"]):
                gated(f"{p}mlp.experts.{expert}", config["moe_intermediate_size"])
        else:
            gated(p + "mlp", config["intermediate_size"], config.get("mlp_bias", False))
    norm("model.norm", hidden)
    if not config.get("tie_word_embeddings", True):
        linear("lm_head", config["vocab_size"], hidden, 3.0)
    dtype = getattr(torch, dtype_of(config))
    return {name: tensor.to(dtype) for name, tensor in out.items()}


def write_checkpoint(folder, config, weights):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(full_config(config), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOP_IDS}) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone


def watch_routing(model, config):
    """→ (list that is filled with each row's routing margin, hooks)."""
    import torch

    margins, hooks, taken = [], [], config.get("num_experts_per_tok")
    for i in range(config["num_hidden_layers"]):
        if has_experts(config, i):
            gate = model.model.layers[i].mlp.gate

            def margin(_module, inputs, _out, weight=gate.weight):
                scores = torch.nn.functional.linear(inputs[0].reshape(-1, weight.shape[1]), weight).softmax(-1)
                best = scores.topk(taken + 1).values
                margins.extend((best[:, -2] - best[:, -1]).tolist())

            hooks.append(gate.register_forward_hook(margin))
    return margins, hooks


def make_cases(model, config, seed):
    """Cases whose every choice is decided, or None."""
    import torch

    rng, cases = np.random.default_rng(seed), []
    layers = config["num_hidden_layers"]
    for length in PROMPT_LENGTHS:
        prompt = rng.integers(2, config["vocab_size"], length).tolist()
        # Hooks, because the last entry of transformers' hidden_states has been through the final norm already.
        seen = {}
        hooks = [model.model.layers[i].register_forward_hook(
            lambda _m, _in, out, i=i: seen.__setitem__(i, (out[0] if isinstance(out, tuple) else out)[0, -1])) for i in (0, layers - 1)]
        hooks.append(model.model.norm.register_forward_hook(lambda _m, _in, out: seen.__setitem__("final", out[0, -1])))
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0, -1]
        for hook in hooks:
            hook.remove()
        routing, hooks = watch_routing(model, config)
        ids, margins, _ = greedy(model, prompt, GREEDY_TOKENS)
        for hook in hooks:
            hook.remove()
        if (min(margins) < LEAST_MARGIN or len(set(ids)) < LEAST_DISTINCT or set(ids) & set(STOP_IDS)
                or min(routing, default=1.0) < LEAST_ROUTING_MARGIN):
            return None
        cases.append({
            "prompt": prompt,
            "logits": row(logits),
            "taps": [row(seen[i]) for i in (0, layers - 1)],
            "final_hidden": row(seen["final"]),
            "greedy": ids,
            "margins": [round(m, 5) for m in margins],
            **({"least_routing_margin": round(min(routing), 6)} if routing else {}),
        })
    return cases


def check_mistral(name, spec, cases):
    """Mistral without windows is Llama in transformers, too: the test relies on it."""
    import tempfile
    from pathlib import Path

    import torch

    with tempfile.TemporaryDirectory() as folder:
        config = {**full_config(spec["config"]), "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        (Path(folder) / "model.safetensors").write_bytes((HERE / name / "model.safetensors").read_bytes())
        model = load_reference(Path(folder))
        assert type(model).__name__ == "MistralForCausalLM"
        for case in cases:
            with torch.inference_mode():
                logits = model(torch.tensor([case["prompt"]])).logits[0, -1]
            assert np.abs(logits.numpy() - np.array(case["logits"])).max() < 1e-4


def make_family(name, spec):
    config = spec["config"]
    for seed in range(10_000):
        write_checkpoint(HERE / name, config, random_weights(config, seed))
        model = load_reference(HERE / name)
        cases = make_cases(model, config, seed)
        if cases is not None:
            break
    if name == "llama-tiny":
        assert model.config.rope_parameters["rope_type"] == "llama3", model.config.rope_parameters
        check_mistral(name, spec, cases)
    dump(HERE / f"{name}.json", {
        "provenance": provenance("families", **reference_versions()),
        "checkpoint": f"models/tests/golden/{name}",
        "arithmetic": f"weights stored as {dtype_of(config)}, widened to float32; float32 arithmetic; eager attention; processor: CPU",
        "seed": seed,
        "meaning": MEANING,
        "tap_layers": [0, config["num_hidden_layers"] - 1],
        "cases": cases,
    })


# ---------------------------------------------------------------------------------------------------------------------
# Rotary frequencies.

ROPES = {
    "default": (64, {"rope_theta": 500000.0}),
    "default, no theta": (12, {}),
    "default, new keys": (128, {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}),
    "linear, old keys": (64, {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "linear, new keys": (32, {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}}),
    "llama3, Llama 3.1": (128, {"rope_theta": 500000.0, "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3"}}),
    "llama3, Llama 3.2, new keys": (64, {"rope_parameters": {
        "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}}),
    "llama3, the tiny checkpoint": (12, {"rope_theta": 10000.0, "rope_scaling": LLAMA3}),
    "yarn, Qwen2.5": (128, {"rope_theta": 1000000.0, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}),
}
# Far enough that every frequency has turned, near enough that float32 still tells the angles.
ROPE_POSITION = 1000


def make_rope():
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    cases = []
    for name, (head_dim, keys) in ROPES.items():
        config = {"model_type": "llama", "hidden_size": 4 * head_dim, "num_attention_heads": 4, "max_position_embeddings": 131072, **keys}
        embedding = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(config))))
        cos, sin = embedding(torch.zeros(1), torch.tensor([[ROPE_POSITION]]))
        half = head_dim // 2
        cases.append({
            "name": name, "head_dim": head_dim, "config": config,
            "frequencies": [float(f"{x:.9g}") for x in embedding.inv_freq.tolist()],
            "magnitude": round(float(embedding.attention_scaling), 9),
            "position": ROPE_POSITION, "cos": row(cos[0, 0, :half]), "sin": row(sin[0, 0, :half]),
        })
    dump(HERE / "rope.json", {
        "provenance": provenance("families", **reference_versions()),
        "meaning": {
            "frequencies": "radians per position; magnitude: factor on cos and sin; cos, sin: at position",
        },
        "cases": cases,
    })


# ---------------------------------------------------------------------------------------------------------------------
# The families quantized, in MLX's layout, against mlx-lm (quantized.py).

WIDE = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 64, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
LLAMA = {**WIDE, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 10000.0, "rope_scaling": LLAMA3}
QWEN2 = {**WIDE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1000000.0, "use_sliding_window": False,
         "max_window_layers": 2, "tie_word_embeddings": True}
QWEN3_MOE = {**WIDE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 16, "moe_intermediate_size": 32,
             "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [0],
             "rope_theta": 1000000.0, "rope_scaling": None}
Q4, Q8 = {"group_size": 64, "bits": 4}, {"group_size": 32, "bits": 8}
# mlx-lm keeps the router at 8 bits.
ROUTER = {"model.layers.1.mlp.gate": {"group_size": 64, "bits": 8}}
# Experts of 32 inputs are not made of groups of 64.
SMALL_GROUPS = {"group_size": 32, "bits": 4}

QUANTIZED = {
    "llama-tiny-q4": (LLAMA, Q4, {}),
    "llama-tiny-q8": (LLAMA, Q8, {}),
    "qwen2-tiny-q4": (QWEN2, Q4, {}),
    "qwen2-tiny-q8": ({**QWEN2, "torch_dtype": "float16"}, Q8, {}),
    "qwen3-moe-tiny-q4": (QWEN3_MOE, SMALL_GROUPS, ROUTER),
    "qwen3-moe-tiny-q8": (QWEN3_MOE, Q8, ROUTER),
}


def accept_unused_keyword():
    """mlx-lm 0.32.2 passes the experts' product a keyword of a newer MLX, with None."""
    import mlx.core as mx

    product = mx.gather_qmm

    def without(*args, global_scale=None, **kwargs):
        assert global_scale is None
        return product(*args, **kwargs)

    mx.gather_qmm = without


def make_quantized(name, config, quantization, paths):
    import make
    import quantized

    spec = {"sizes": {"vocab_size": config["vocab_size"]}, "quantization": quantization, "paths": paths,
            "taps": [0, config["num_hidden_layers"] - 1]}
    quantized.make_style(make, name, "families", MEANING, spec,
                         lambda folder, seed: write_checkpoint(folder, config, random_weights(config, seed)))


def make_families():
    for name, spec in FAMILIES.items():
        make_family(name, spec)
    make_rope()
    accept_unused_keyword()
    for name, (config, quantization, paths) in QUANTIZED.items():
        make_quantized(name, config, quantization, paths)
