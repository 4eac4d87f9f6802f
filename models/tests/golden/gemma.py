"""Golden files of Gemma 3 and of Gemma 4 (text): dense, with experts, and an edge model with inputs of each layer and shared keys and values, from
transformers; quantized ones in MLX's layout from mlx-lm (quantized.py).

Part of make.py: `python models/tests/golden/make.py gemma`. Checkpoints are tiny and random. Their windows are shorter than most prompts.
"""

import math

import numpy as np

import make
import quantized
from families import LEAST_ROUTING_MARGIN, MEANING, accept_unused_keyword, write_checkpoint
from make import (GREEDY_TOKENS, HERE, LEAST_DISTINCT, LEAST_MARGIN, PROMPT_LENGTHS, STOP_IDS, dump, greedy, load_reference, provenance,
                  reference_versions, row)

ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}}
# √64 and √16 are numbers of every type, so the factors on embeddings need no rounding.
COMMON = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 64, "num_attention_heads": 4,
          "head_dim": 8, "global_head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "sliding_window": 24,
          "attention_bias": False, "tie_word_embeddings": True, "final_logit_softcapping": 30.0, "num_kv_shared_layers": 0,
          "rope_parameters": ROPE}


def kinds(word):
    return [{"s": "sliding_attention", "f": "full_attention"}[letter] for letter in word]


# As 1B and 270M: keys of two bases, of which a scaling is that of full layers; scores by a scalar that is no head size; a last layer
# that slides.
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 184, "hidden_size": 64,
          "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48,
          "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "sliding_window": 24, "attention_bias": False,
          "tie_word_embeddings": True, "query_pre_attn_scalar": 20, "layer_types": kinds("sfss"), "rope_theta": 1000000.0,
          "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "dtype": "bfloat16"}

STYLES = {
    "gemma3-tiny": GEMMA3,
    # As 31B: keys of full layers are their values, and these layers have fewer heads of them.
    "gemma4-tiny": {**COMMON, "vocab_size": 200, "num_hidden_layers": 5, "layer_types": kinds("ssfsf"), "num_key_value_heads": 2,
                    "attention_k_eq_v": True, "num_global_key_value_heads": 1, "intermediate_size": 48,
                    "use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0, "dtype": "bfloat16"},
    # As 26B-A4B: a router with a norm, a scale, and a factor for each expert, beside a dense block.
    "gemma4-tiny-moe": {**COMMON, "vocab_size": 192, "num_hidden_layers": 3, "layer_types": kinds("ssf"), "num_key_value_heads": 2,
                        "attention_k_eq_v": True, "num_global_key_value_heads": 2, "intermediate_size": 40, "enable_moe_block": True,
                        "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 12, "hidden_size_per_layer_input": 0,
                        "dtype": "bfloat16"},
    # As E2B: inputs of each layer, two layers that share keys and values, whose blocks are twice as wide.
    "gemma4-tiny-edge": {**COMMON, "vocab_size": 160, "num_hidden_layers": 5, "layer_types": kinds("sfssf"), "num_key_value_heads": 1,
                         "attention_k_eq_v": False, "intermediate_size": 24, "hidden_size_per_layer_input": 16,
                         "vocab_size_per_layer_input": 160, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
                         "dtype": "bfloat16"},
}


def is_gemma3(config):
    return config["model_type"] == "gemma3_text"


def sizes(config, layer):
    """→ (head size, KV heads) of a layer."""
    if config["layer_types"][layer] == "sliding_attention" or is_gemma3(config):
        return config["head_dim"], config["num_key_value_heads"]
    heads = config["num_global_key_value_heads"] if config["attention_k_eq_v"] else config["num_key_value_heads"]
    return config["global_head_dim"], heads


def random_weights(config, seed):
    """Weights large enough that every part matters."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    hidden, layers, width = config["hidden_size"], config["num_hidden_layers"], config.get("hidden_size_per_layer_input", 0)
    own = layers - config.get("num_kv_shared_layers", 0)
    out = {}

    def linear(name, rows, cols, gain):
        out[name + ".weight"] = torch.randn(rows, cols, generator=generator) * (gain / math.sqrt(cols))

    def norm(name, size, gain=1.0):
        whole = gain * (1.0 + 0.3 * torch.randn(size, generator=generator))
        out[name + ".weight"] = whole - 1.0 if is_gemma3(config) else whole

    # Without a factor of each layer larger embeddings of a tied head would have every answer repeat its last token.
    size = 0.015 if is_gemma3(config) else 0.08
    out["model.embed_tokens.weight"] = torch.randn(config["vocab_size"], hidden, generator=generator) * size
    if width:
        out["model.embed_tokens_per_layer.weight"] = torch.randn(config["vocab_size_per_layer_input"], layers * width,
                                                                 generator=generator) * 0.3
        linear("model.per_layer_model_projection", layers * width, hidden, 8.0)
        norm("model.per_layer_projection_norm", width)
    # Gemma 3 has a factor of the scores, which these weights take back.
    sharpness = 1.7 if is_gemma3(config) else 0.8
    for i in range(layers):
        p = f"model.layers.{i}."
        head, kv = sizes(config, i)
        heads, full = config["num_attention_heads"], config["layer_types"][i] == "full_attention"
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            norm(p + name, hidden)
        linear(p + "self_attn.q_proj", heads * head, hidden, 1.0)
        norm(p + "self_attn.q_norm", head, sharpness)
        linear(p + "self_attn.o_proj", hidden, heads * head, 1.0)
        if i < own:
            linear(p + "self_attn.k_proj", kv * head, hidden, 1.0)
            norm(p + "self_attn.k_norm", head, sharpness)
            if not (full and config.get("attention_k_eq_v")):
                linear(p + "self_attn.v_proj", kv * head, hidden, 1.0)
        wide = config["intermediate_size"] * (2 if i >= own and config.get("use_double_wide_mlp") else 1)
        linear(p + "mlp.gate_proj", wide, hidden, 1.5)
        linear(p + "mlp.up_proj", wide, hidden, 1.5)
        linear(p + "mlp.down_proj", hidden, wide, 1.5)
        if config.get("enable_moe_block"):
            experts, inner = config["num_experts"], config["moe_intermediate_size"]
            for name in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
                norm(p + name, hidden)
            linear(p + "router.proj", experts, hidden, 10.0)
            out[p + "router.scale"] = 1.0 + 0.3 * torch.randn(hidden, generator=generator)
            out[p + "router.per_expert_scale"] = 1.0 + 0.4 * torch.rand(experts, generator=generator)
            out[p + "experts.gate_up_proj"] = torch.randn(experts, 2 * inner, hidden, generator=generator) * (1.5 / math.sqrt(hidden))
            out[p + "experts.down_proj"] = torch.randn(experts, hidden, inner, generator=generator) * (1.5 / math.sqrt(inner))
        if width:
            linear(p + "per_layer_input_gate", width, hidden, 1.5)
            linear(p + "per_layer_projection", hidden, width, 1.5)
            norm(p + "post_per_layer_input_norm", hidden)
        if not is_gemma3(config):
            out[p + "layer_scalar"] = torch.tensor([0.6 + 0.1 * i])
    norm("model.norm", hidden, 60.0 if is_gemma3(config) else 12.0)
    dtype = getattr(torch, config["dtype"])
    return {name: tensor.to(dtype) for name, tensor in out.items()}


def make_cases(model, config, seed):
    """Cases whose every choice is decided, or None."""
    import torch

    rng, cases, last = np.random.default_rng(seed), [], config["num_hidden_layers"] - 1
    layers = model.model.layers
    for length in PROMPT_LENGTHS:
        prompt = rng.integers(2, config["vocab_size"], length).tolist()
        seen, routing, hooks = {}, [], []

        def keep(key):
            return lambda _module, _inputs, out: seen.__setitem__(key, (out[0] if isinstance(out, tuple) else out)[0, -1])

        hooks += [layers[i].register_forward_hook(keep(i)) for i in (0, last)]
        hooks.append(model.model.norm.register_forward_hook(keep("final")))
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0, -1]
        for hook in hooks:
            hook.remove()

        def margin(_module, _inputs, out):
            best = out[0].reshape(-1, out[0].shape[-1]).topk(config["top_k_experts"] + 1).values
            routing.extend((best[:, -2] - best[:, -1]).tolist())

        hooks = [layer.router.register_forward_hook(margin) for layer in layers if config.get("enable_moe_block")]
        ids, margins, _ = greedy(model, prompt, GREEDY_TOKENS)
        for hook in hooks:
            hook.remove()
        if (min(margins) < LEAST_MARGIN or len(set(ids)) < LEAST_DISTINCT or set(ids) & set(STOP_IDS)
                or min(routing, default=1.0) < LEAST_ROUTING_MARGIN):
            return None
        cases.append({
            "prompt": prompt,
            "logits": row(logits),
            "taps": [row(seen[i]) for i in (0, last)],
            "final_hidden": row(seen["final"]),
            "greedy": ids,
            "margins": [round(m, 5) for m in margins],
            **({"least_routing_margin": round(min(routing), 6)} if routing else {}),
        })
    return cases


def make_style(name, config):
    for seed in range(10_000):
        write_checkpoint(HERE / name, config, random_weights(config, seed))
        model = load_reference(HERE / name)
        cases = make_cases(model, config, seed)
        if cases is not None:
            break
    assert type(model).__name__ == config["architectures"][0], type(model)
    dump(HERE / f"{name}.json", {
        "provenance": provenance("gemma", **reference_versions()),
        "checkpoint": f"models/tests/golden/{name}",
        "arithmetic": f"weights stored as {config['dtype']}, widened to float32; float32 arithmetic; eager attention; processor: CPU",
        "seed": seed,
        "meaning": MEANING,
        "tap_layers": [0, config["num_hidden_layers"] - 1],
        "cases": cases,
    })


# Quantized, in MLX's layout, against mlx-lm (quantized.py). Inputs of every matrix are whole groups of 32. The roots of sizes that
# multiply embeddings are whole: Paceline rounds them to the stored type, as models are trained, and the reference computes in float32.
WIDE = {**COMMON, "vocab_size": 128, "intermediate_size": 64, "dtype": "bfloat16"}
EDGE = {"hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 128, "use_double_wide_mlp": True}
Q4, Q8 = {"group_size": 32, "bits": 4}, {"group_size": 64, "bits": 8}
QUANTIZED = {
    # The values' projection of layer 0 has a format of its own; the full layer has no such projection.
    "gemma4-tiny-q4": ({**WIDE, "num_hidden_layers": 3, "layer_types": kinds("ssf"), "num_key_value_heads": 2, "attention_k_eq_v": True,
                        "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0},
                       {"model.layers.0.self_attn.v_proj": Q8}),
    "gemma4-moe-q4": ({**WIDE, "num_hidden_layers": 3, "layer_types": kinds("ssf"), "num_key_value_heads": 2, "attention_k_eq_v": True,
                       "num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
                       "moe_intermediate_size": 32, "hidden_size_per_layer_input": 0},
                      {f"model.layers.{layer}.router.proj": Q8 for layer in range(3)}),
    "gemma4-edge-q4": ({**WIDE, **EDGE, "num_hidden_layers": 5, "layer_types": kinds("sfssf"), "num_key_value_heads": 1,
                        "attention_k_eq_v": False, "num_kv_shared_layers": 2},
                       {"model.layers.1.per_layer_input_gate": False}),
}


def forward(model, ids, taps):
    """As quantized.forward: the layers are called by the model, which shares keys and values among them."""
    import mlx.core as mx

    kind, seen = type(model.model.layers[0]), {}
    plain = kind.__call__

    def kept(layer, *arguments, **named):
        out = plain(layer, *arguments, **named)
        seen[layer.layer_idx] = out[0][0, -1]
        return out

    kind.__call__ = kept
    try:
        logits = model(mx.array([ids]))[0, -1]
    finally:
        kind.__call__ = plain
    final = model.model.norm(seen[len(model.model.layers) - 1])
    return np.array(logits), [np.array(seen[at]) for at in taps], np.array(final)


def make_quantized_one(name, config, paths):
    spec = {"sizes": {"vocab_size": config["vocab_size"]}, "quantization": Q4, "paths": paths, "taps": [0, config["num_hidden_layers"] - 1]}
    quantized.make_style(make, name, "gemma", MEANING, spec,
                         lambda folder, seed: write_checkpoint(folder, config, random_weights(config, seed)), forward)


def make_gemma():
    for name, config in STYLES.items():
        make_style(name, config)
    accept_unused_keyword()
    for name, parts in QUANTIZED.items():
        make_quantized_one(name, *parts)
