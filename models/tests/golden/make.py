"""Makes every golden file of this folder, and demo/golden.json, from reference implementations.

Run by `make golden`, or by hand from the repository root:

    python models/tests/golden/make.py [tiny] [families] [gemma] [hybrid] [quantized] [demo] [sampling] [vision] [hybrid_vision] [gemma_vision]
        [qwen_vision] [ocr_vision] [ocr_draft] [glm_vision] [mtp_glm]
        [draft] [draft_tokens] [chains] [mtp] [hybrid_draft] [gemma_draft] [assistant]

Without a name: all but the last seven, which need the packages that their files name.
Needs the packages of demo/requirements.txt. The model code of this project is not involved: models run in transformers, quantized
ones in mlx-lm (quantized.py), in float32, one sequence at a time; the sampling vectors are computed here
by numpy in float64 from the contract's text. Each file carries its provenance; made again with the same versions on the same
kind of processor it comes out the same, elsewhere the last digits of logits may differ.
"""

import json
import math
import platform
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def provenance(what, **versions):
    return {
        "made_by": "models/tests/golden/make.py",
        "command": f"python models/tests/golden/make.py {what}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        **versions,
    }


def reference_versions():
    import safetensors
    import tokenizers
    import torch
    import transformers

    return {
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "safetensors": safetensors.__version__,
    }


def dump(path, data):
    """One line for a short value and one for each element of a list of objects, so that a diff shows what changed."""
    lines = []
    for key, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            body = ",\n  ".join(json.dumps(item, ensure_ascii=False) for item in value)
            lines.append(f'"{key}": [\n  {body}\n]')
        else:
            lines.append(f'"{key}": {json.dumps(value, ensure_ascii=False)}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


# ---------------------------------------------------------------------------------------------------------------------
# Qwen3: tiny checkpoints with random weights. Each differs from the others wherever published checkpoints differ.

TINY = {
    # Tied head, one float32 file, old RoPE keys, head_dim unequal to hidden / heads.
    "qwen3-tiny": {
        "sizes": {"vocab_size": 288, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 64, "tie_word_embeddings": True},
        "rope": {"rope_theta": 10000.0, "rope_scaling": None},
        "dtype": ("torch_dtype", "float32"),
        "shards": 1,
        "taps": [0, 2],
    },
    # Own head, bfloat16 in three shards with an index, the new RoPE key, three query heads a KV head.
    "qwen3-tiny-untied": {
        "sizes": {"vocab_size": 272, "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
                  "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 56, "tie_word_embeddings": False},
        "rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        "dtype": ("dtype", "bfloat16"),
        "shards": 3,
        "taps": [0, 2],
    },
    # float16, a single KV head, tied.
    "qwen3-tiny-f16": {
        "sizes": {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                  "num_key_value_heads": 1, "head_dim": 24, "intermediate_size": 48, "tie_word_embeddings": True},
        "rope": {"rope_theta": 10000.0, "rope_scaling": None},
        "dtype": ("torch_dtype", "float16"),
        "shards": 1,
        "taps": [0, 1],
    },
}
PROMPT_LENGTHS = [1, 7, 33, 150]
GREEDY_TOKENS = 32
# A seed is taken when no greedy choice is closer than this, so that the ids are decided by the weights and not by the order of
# sums, and when the answers are varied enough to notice a wrong cache.
LEAST_MARGIN = 0.02
LEAST_DISTINCT = 12
# No golden answer contains these, so a stop token in a config cannot cut one short.
STOP_IDS = [0, 1]
TINY_MEANING = {
    "logits": "row of the last prompt position",
    "taps": "raw outputs of layers tap_layers (after the residual adds, before any norm) at the last prompt position",
    "final_hidden": "the last prompt position after the final norm, as the head sees it",
    "greedy": "ids chosen after the prompt, stop tokens ignored; ties: lowest id",
    "margins": "best minus second logit of each choice",
}


def tiny_config(spec):
    key, dtype = spec["dtype"]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **spec["sizes"],
        **spec["rope"],
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": spec["sizes"]["num_hidden_layers"],
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": STOP_IDS[0],
        "pad_token_id": None,
        key: dtype,
    }


def tiny_weights(spec, seed):
    """Weights large enough that every part matters: norms away from 1, attention away from uniform, answers that do not repeat."""
    import torch

    s = spec["sizes"]
    generator = torch.Generator().manual_seed(seed)

    def normal(rows, cols, gain):
        return torch.randn(rows, cols, generator=generator) * (gain / math.sqrt(cols))

    def norm(size):
        return 1.0 + 0.3 * torch.randn(size, generator=generator)

    hidden, head = s["hidden_size"], s["head_dim"]
    q, kv = s["num_attention_heads"] * head, s["num_key_value_heads"] * head
    out = {"model.embed_tokens.weight": torch.randn(s["vocab_size"], hidden, generator=generator) * 0.5}
    for i in range(s["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = norm(hidden)
        out[p + "self_attn.q_proj.weight"] = normal(q, hidden, 1.0)
        out[p + "self_attn.k_proj.weight"] = normal(kv, hidden, 1.0)
        out[p + "self_attn.v_proj.weight"] = normal(kv, hidden, 2.0)
        out[p + "self_attn.o_proj.weight"] = normal(hidden, q, 2.0)
        out[p + "self_attn.q_norm.weight"] = 1.5 * norm(head)
        out[p + "self_attn.k_norm.weight"] = norm(head)
        out[p + "post_attention_layernorm.weight"] = norm(hidden)
        out[p + "mlp.gate_proj.weight"] = normal(s["intermediate_size"], hidden, 2.0)
        out[p + "mlp.up_proj.weight"] = normal(s["intermediate_size"], hidden, 1.5)
        out[p + "mlp.down_proj.weight"] = normal(hidden, s["intermediate_size"], 2.0)
    out["model.norm.weight"] = norm(hidden)
    if not s["tie_word_embeddings"]:
        out["lm_head.weight"] = normal(s["vocab_size"], hidden, 3.0)
    dtype = getattr(torch, spec["dtype"][1])
    return {name: tensor.to(dtype) for name, tensor in out.items()}


def write_tiny(folder, spec, weights):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    (folder / "config.json").write_text(json.dumps(tiny_config(spec), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOP_IDS}) + "\n")
    if spec["shards"] == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
        return
    # Shards of about equal numbers of tensors, cut in the middle of a layer as large checkpoints are.
    names, n = list(weights), spec["shards"]
    index = {"metadata": {"total_size": sum(w.numel() * w.element_size() for w in weights.values())}, "weight_map": {}}
    for k in range(n):
        file = f"model-{k + 1:05d}-of-{n:05d}.safetensors"
        part = names[k * len(names) // n: (k + 1) * len(names) // n]
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
        index["weight_map"].update({name: file for name in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def load_reference(folder):
    """The checkpoint as stored, its weights widened to float32 (exact for bfloat16 and float16)."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()


def greedy(model, prompt, max_tokens, stops=()):
    """→ (ids, margins, logits of the last prompt row). Margin: best minus second logit at that step. Ties: lowest id."""
    import torch

    ids, margins, first, past = [], [], None, None
    rows = torch.tensor([prompt])
    with torch.inference_mode():
        while len(ids) < max_tokens:
            out = model(rows, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, logits = out.past_key_values, out.logits[0, -1]
            first = logits if first is None else first
            best, second = logits.topk(2).values.tolist()
            ids.append(int(np.argmax(logits.numpy())))
            margins.append(best - second)
            if ids[-1] in stops:
                break
            rows = torch.tensor([[ids[-1]]])
    return ids, margins, first


def row(tensor):
    return [round(float(x), 6) for x in tensor]


def tiny_cases(model, spec, seed):
    import torch

    rng = np.random.default_rng(seed)
    cases = []
    for length in PROMPT_LENGTHS:
        prompt = rng.integers(2, spec["sizes"]["vocab_size"], length).tolist()
        # Hooks, because the last entry of transformers' hidden_states has been through the final norm already.
        seen = {}
        hooks = [model.model.layers[i].register_forward_hook(
            lambda _m, _in, out, i=i: seen.__setitem__(i, (out[0] if isinstance(out, tuple) else out)[0, -1])) for i in spec["taps"]]
        hooks.append(model.model.norm.register_forward_hook(lambda _m, _in, out: seen.__setitem__("final", out[0, -1])))
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0, -1]
        for hook in hooks:
            hook.remove()
        ids, margins, _ = greedy(model, prompt, GREEDY_TOKENS)
        cases.append({
            "prompt": prompt,
            "logits": row(logits),
            "taps": [row(seen[i]) for i in spec["taps"]],
            "final_hidden": row(seen["final"]),
            "greedy": ids,
            "margins": [round(m, 5) for m in margins],
        })
    return cases


def make_tiny():
    for name, spec in TINY.items():
        for seed in range(10_000):
            write_tiny(HERE / name, spec, tiny_weights(spec, seed))
            model = load_reference(HERE / name)
            rope = model.config.rope_parameters
            wanted = spec["rope"].get("rope_theta") or spec["rope"]["rope_parameters"]["rope_theta"]
            assert rope["rope_theta"] == wanted and rope["rope_type"] == "default", rope
            cases = tiny_cases(model, spec, seed)
            if all(min(c["margins"]) >= LEAST_MARGIN and len(set(c["greedy"])) >= LEAST_DISTINCT
                   and not set(c["greedy"]) & set(STOP_IDS) for c in cases):
                break
        dump(HERE / f"{name}.json", {
            "provenance": provenance("tiny", **reference_versions()),
            "checkpoint": f"models/tests/golden/{name}",
            "arithmetic": f"weights stored as {spec['dtype'][1]}, widened to float32; float32 arithmetic; eager attention; processor: CPU",
            "seed": seed,
            "meaning": TINY_MEANING,
            "tap_layers": spec["taps"],
            "cases": cases,
        })


# ---------------------------------------------------------------------------------------------------------------------
# The demo pair's target: template, ids, greedy answers.

DEMO_PER_KIND = {"json": 4, "arithmetic": 4, "code": 3, "table": 3, "facts": 3, "prose": 3}
DEMO_MAX_TOKENS = 96


def make_demo():
    import torch
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    target = ROOT / "demo" / "target"
    model, tokenizer = load_reference(target), AutoTokenizer.from_pretrained(target)
    stops = json.loads((target / "generation_config.json").read_text())["eos_token_id"]
    prompts = [json.loads(line) for line in (ROOT / "demo" / "prompts.jsonl").read_text().splitlines()]
    cases = []
    for kind, count in DEMO_PER_KIND.items():
        taken = 0
        for index, prompt in enumerate(prompts):
            if prompt["kind"] != kind or taken == count:
                continue
            text = tokenizer.apply_chat_template(prompt["messages"], tokenize=False, add_generation_prompt=True)
            ids = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, return_dict=False)
            assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
            max_tokens = min(prompt["max_tokens"], DEMO_MAX_TOKENS)
            answer, margins, _ = greedy(model, ids, max_tokens, stops)
            # A choice closer than this could fall the other way in another order of sums; such a prompt is not a golden.
            if min(margins) < LEAST_MARGIN:
                continue
            taken += 1
            cases.append({
                "line": index + 1,
                "kind": kind,
                "messages": prompt["messages"],
                "rendered": text,
                "prompt": ids,
                "max_tokens": max_tokens,
                "greedy": answer,
                "text": tokenizer.decode(answer, skip_special_tokens=True),
                "margins": [round(m, 4) for m in margins],
            })
        assert taken == count, kind
    special = {t.content: i for i, t in sorted(tokenizer.added_tokens_decoder.items()) if t.special}
    # What the detokenizer may rely on: special tokens never come out as text, and are found inside a prompt's text.
    assert tokenizer.decode(list(special.values()), skip_special_tokens=True) == ""
    assert tokenizer("a<|im_end|>b", add_special_tokens=False)["input_ids"][1] == special["<|im_end|>"]
    dump(ROOT / "demo" / "golden.json", {
        "provenance": provenance("demo", **reference_versions()),
        "checkpoint": "demo/target",
        "arithmetic": f"weights as stored ({model_dtype(target)}), float32 arithmetic, eager attention, processor: CPU",
        "meaning": {
            "line": "line of demo/prompts.jsonl, from 1: the first of its kind whose every margin is at least least_margin",
            "rendered": "the chat template's text with the generation prompt; prompt: its ids",
            "greedy": "ids up to max_tokens, with the stop token when it was reached; ties: lowest id",
            "text": "greedy decoded with skip_special_tokens=True",
            "margins": "best minus second logit of each choice",
        },
        "least_margin": LEAST_MARGIN,
        "special_tokens": special,
        "stop_ids": stops,
        "cases": cases,
    })


def model_dtype(folder):
    config = json.loads((folder / "config.json").read_text())
    return config.get("dtype") or config["torch_dtype"]


# ---------------------------------------------------------------------------------------------------------------------
# Sampling: the contract of "Choosing tokens" in numpy, integers exact, the rest float64.

MASK32 = 0xFFFFFFFF
# Philox4x32-10 known answers, published with Random123 (kat_vectors): counter, key, output.
PHILOX_KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([MASK32] * 4, [MASK32] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]


def philox4x32(counter, key):
    """Ten rounds of Philox4x32 (Salmon et al., SC 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return [c0, c1, c2, c3]


def word(seed, sample, position, token):
    counter = [position & MASK32, token // 4, sample, 0]
    return philox4x32(counter, [seed & MASK32, seed >> 32])[token % 4]


def uniform(r):
    return min((r + 0.5) / 2.0**32, 1.0 - 2.0**-24)


def noise(r):
    return -math.log(-math.log1p(-uniform(r)))


def noise_tolerance(r):
    """How far float32 may be off: v is off by up to 2^-24 of itself, and the slope of the noise in v is 1 / ((1-v) · -ln(1-v))."""
    v = uniform(r)
    return 1e-5 + v * 2.0**-24 / ((1.0 - v) * -math.log1p(-v))


def choose(case, logits):
    """→ (token, survivors, margin). Margin: the least distance of anything decided, in units of logit / T (top-p: of probability)."""
    temperature, top_k, top_p, min_p = (case[k] for k in ("temperature", "top_k", "top_p", "min_p"))
    logits = np.asarray(logits, dtype=np.float64)
    ids = np.arange(len(logits))
    if temperature == 0.0:
        order = np.lexsort((ids, -logits))
        gap = logits[order[0]] - logits[order[1]]
        return int(order[0]), len(ids), gap if gap > 0 else math.inf  # an exact tie is decided: lowest id
    scaled = logits / temperature
    order = np.lexsort((ids, -scaled))  # best first; among equals the lower id
    margin = math.inf
    if 0 < top_k < len(order):
        gap = scaled[order[top_k - 1]] - scaled[order[top_k]]
        margin = min(margin, gap if gap > 0 else math.inf)
        order = order[:top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    probability = weights / weights.sum()
    alive = np.ones(len(order), dtype=bool)
    if top_p < 1.0:
        before = np.concatenate(([0.0], np.cumsum(probability)[:-1]))
        alive &= before < top_p
        margin = min(margin, float(np.abs(before - top_p).min()))
    if min_p > 0.0:
        alive &= probability >= min_p * probability[0]
        # The best itself survives any min_p up to 1, so only the others can be near the edge.
        distance = np.abs(scaled[order[1:]] - scaled[order[0]] - math.log(min_p))
        margin = min(margin, float(distance.min(initial=math.inf)))
    order = order[alive]
    if (top_a := case.get("top_a", 0.0)) > 0.0:
        masses = np.exp(scaled[order] - scaled[order[0]])
        probability = masses / masses.sum()
        alive = probability >= top_a * probability[0] ** 2
        # In units of the best one's probability. The best itself survives any top_a up to 1.
        margin = min(margin, float(np.abs(masses[1:] - top_a / masses.sum()).min(initial=math.inf)))
        order = order[alive]
    score = np.array([scaled[i] + noise(word(case["seed"], case["sample"], case["position"], int(i))) for i in order])
    best = np.lexsort((order, -score))
    if len(best) > 1:
        margin = min(margin, float(score[best[0]] - score[best[1]]))
    return int(order[best[0]]), len(order), margin


def adjusted(case, logits):
    """Penalties along the row's own history, bias, and stop ids that would come too early."""
    logits = np.array(logits, dtype=np.float64)
    history, generated = case["history"], case["history"][case["prompt_len"]:]
    for i in set(history):
        logits[i] = logits[i] / case["repetition_penalty"] if logits[i] > 0 else logits[i] * case["repetition_penalty"]
    for i in set(generated):
        logits[i] -= case["frequency_penalty"] * generated.count(i) + case["presence_penalty"]
    for i, bias in case["bias"]:
        logits[i] += bias
    if len(generated) < case["min_tokens"]:
        logits[case["stop_ids"]] = -math.inf
    return logits


def log_probabilities(case, logits, token):
    """→ (of the token, [(id, of it)] of the most probable ones)."""
    scaled = logits / (case["temperature"] or 1.0)
    logs = scaled - scaled.max()
    logs = logs - math.log(np.exp(logs).sum())
    order = np.lexsort((np.arange(len(logs)), -logs))[:case["logprobs"]]
    return logs[token], [(int(i), logs[i]) for i in order if logs[i] > -math.inf]


def make_processed():
    """Cases of everything that comes before temperature, and of log-probabilities."""
    rng = np.random.default_rng(21)
    off = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "bias": "", "stop_ids": "", "min_tokens": ""}
    settings = [
        {}, {"repetition_penalty": 1.3}, {"repetition_penalty": 0.7}, {"presence_penalty": 1.5}, {"presence_penalty": -1.0},
        {"frequency_penalty": 0.8}, {"frequency_penalty": -0.3}, {"presence_penalty": 0.5, "frequency_penalty": 0.4},
        {"bias": "forbid"}, {"bias": "force"}, {"bias": "mild"}, {"stop_ids": "best", "min_tokens": "early"},
        {"stop_ids": "best", "min_tokens": "reached"}, {"stop_ids": "best", "min_tokens": "early", "bias": "mild"},
        {"repetition_penalty": 1.1, "presence_penalty": 0.6, "frequency_penalty": 0.2, "bias": "mild", "stop_ids": "best",
         "min_tokens": "early"},
        {"repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 0.5, "bias": "forbid"},
    ]
    choosing = [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 12, 0.9, 0.02)]
    cases, moved = [], 0
    while len(cases) < len(settings) * len(choosing):
        temperature, top_k, top_p, min_p = choosing[len(cases) % len(choosing)]
        size = int(rng.integers(40, 81))
        logits = [round(float(x), 4) for x in rng.normal(0.0, 2.0, size)]
        ranked = [int(i) for i in np.argsort(logits)[::-1]]
        # Mostly ids that could be chosen, some of them again and again.
        history = [ranked[int(i)] for i in rng.integers(0, 10, 14)] + [int(i) for i in rng.integers(0, size, 6)]
        rng.shuffle(history)
        case = {**off, **settings[len(cases) // len(choosing)]}
        prompt_len = int(rng.integers(3, 12))
        case["bias"] = sorted({"forbid": [[i, -100.0] for i in ranked[:3]], "force": [[ranked[-1], 100.0]], "mild": [
            [int(i), round(float(rng.uniform(-3, 3)), 3)] for i in rng.permutation(size)[:12]]}.get(case["bias"], []))
        case["stop_ids"] = ranked[:2] if case["stop_ids"] else []
        case["min_tokens"] = {"early": 20 - prompt_len + 1, "reached": 20 - prompt_len}.get(case["min_tokens"], 0)
        case = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, **case,
                "seed": int(rng.integers(0, 2**64, dtype=np.uint64)), "sample": int(rng.integers(0, 4)), "position": len(history),
                "history": history, "prompt_len": prompt_len, "logprobs": int(rng.integers(0, 21))}
        changed = adjusted(case, logits)
        token, _, margin = choose(case, changed)
        if margin < LEAST_CHOICE_MARGIN:
            continue
        moved += token != choose(case, logits)[0]
        chosen, top = log_probabilities(case, changed, token)
        cases.append({**case, "token": token, "logprob": round(float(chosen), 6),
                      "top": [[i, round(float(log), 6)] for i, log in top], "logits": logits})
    assert moved >= len(cases) // 3, moved
    return cases


LEAST_CHOICE_MARGIN = 2e-3  # float32 decides these cases beyond doubt


def make_sampling():
    for counter, key, out in PHILOX_KNOWN:
        assert philox4x32(counter, key) == out
    rng = np.random.default_rng(20)

    seeds = [0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 0x0123456789ABCDEF, 0xDEADBEEF00000001]
    vectors = []
    for i in range(60):
        seed = seeds[i % len(seeds)] if i < 40 else int(rng.integers(0, 2**64, dtype=np.uint64))
        sample = int([0, 0, 1, 7, 2**32 - 1][i % 5])
        position = int(rng.choice([0, 1, 63, 64, 4095, 262143, 2**32 - 1])) if i < 30 else int(rng.integers(0, 40_000))
        token = i % 8 if i < 16 else int(rng.integers(0, 262_144))
        r = word(seed, sample, position, token)
        vectors.append({"seed": seed, "sample": sample, "position": position, "id": token, "word": r,
                        "noise": round(noise(r), 9), "tolerance": float(f"{noise_tolerance(r):.3g}")})
    extremes = [{"word": r, "noise": round(noise(r), 9), "tolerance": float(f"{noise_tolerance(r):.3g}")}
                for r in (0, 1, 2**31 - 1, 2**31, 2**32 - 512, 2**32 - 2, 2**32 - 1)]

    # (temperature, top_k, top_p, min_p), with top_a behind them where it is on: each processor alone, in pairs, all together, all off.
    settings = [
        (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (1.5, 0, 1.0, 0.0), (0.1, 0, 1.0, 0.0),
        (1.0, 1, 1.0, 0.0), (1.0, 20, 1.0, 0.0), (0.8, 5, 1.0, 0.0), (1.0, 1000, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0), (0.8, 0, 0.5, 0.0), (1.2, 0, 0.95, 0.0), (1.0, 0, 0.01, 0.0),
        (1.0, 0, 1.0, 0.1), (1.3, 0, 1.0, 0.02), (1.0, 0, 1.0, 1.0),
        (0.7, 20, 0.8, 0.0), (1.0, 50, 0.9, 0.05), (0.6, 20, 0.95, 0.01), (1.4, 8, 0.7, 0.2),
    ]
    choices, tied = [], 0
    # With top_a as well; after the others, so that their cases stay what they were.
    with_top_a = [(1.0, 0, 1.0, 0.0, 0.2), (1.5, 0, 1.0, 0.0, 0.05), (1.2, 20, 0.9, 0.02, 0.3), (1.0, 0, 1.0, 0.0, 1.0), (2.0, 0, 0.8, 0.0, 0.5)]
    settings = 2 * settings + 2 * with_top_a
    while len(choices) < len(settings):
        index = len(choices)
        temperature, top_k, top_p, min_p, *top_a = settings[index]
        size = int(rng.integers(64, 301))
        logits = [round(float(x), 4) for x in rng.normal(0.0, 3.0, size)]
        if index % 4 == 0:
            # Exact ties at the top and lower down: the lower id wins wherever a border or a choice cuts through them.
            ranked = np.argsort(logits)[::-1]
            for a, b in ((0, 1), (4, 5), (19, 20), (30, 31)):
                logits[ranked[b]] = logits[ranked[a]]
        case = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, **({"top_a": top_a[0]} if top_a else {}),
                "seed": int(rng.integers(0, 2**64, dtype=np.uint64)), "sample": int(rng.integers(0, 4)),
                "position": int(rng.integers(0, 5000))}
        token, survivors, margin = choose(case, logits)
        if margin < LEAST_CHOICE_MARGIN:
            continue
        tied += len(set(logits)) < len(logits)
        choices.append({**case, "token": token, "survivors": survivors,
                        "margin": None if math.isinf(margin) else round(margin, 6), "logits": logits})
    assert tied >= 8

    dump(HERE / "sampling.json", {
        "provenance": provenance("sampling"),
        "contract": "design: The target's engine, Choosing tokens",
        "meaning": {
            "noise": "words are exact; noise in float64 from v = min((word + 0.5) / 2^32, 1 - 2^-24), -ln(-log1p(-v))",
            "tolerance": "allowed distance of a float32 computation",
            "choices": "top_k 0, top_p 1, min_p 0 and no top_a mean off; temperature 0 means greedy; token: what must be chosen; survivors: "
                       "how many tokens the processors leave; margin: least distance of anything decided (null: nothing is near)",
            "processed": "as choices, behind penalties (history; behind prompt_len: generated), bias [[id, bias]] and stop_ids while "
                         "fewer than min_tokens are generated; logprob: of token, top: of the most probable [[id, logprob]]",
        },
        "philox": [{"counter": c, "key": k, "out": o} for c, k, o in PHILOX_KNOWN],
        "noise": vectors,
        "extremes": extremes,
        "choices": choices,
        "processed": make_processed(),
    })


def make_quantized():
    import quantized

    quantized.make_quantized(sys.modules[__name__])


def make_gemma():
    import gemma

    gemma.make_gemma()


def make_families():
    import families

    families.make_families()


def make_hybrid():
    import hybrid

    hybrid.make_hybrid()


def make_vision():
    import vision

    vision.make_vision(dump, provenance, reference_versions())


def make_hybrid_vision():
    import hybrid_vision

    hybrid_vision.make_hybrid_vision(dump, provenance, reference_versions())


def make_ocr_vision():
    import ocr_vision

    ocr_vision.make_ocr_vision(dump, provenance, reference_versions())


def make_ocr_draft():
    import ocr_draft

    ocr_draft.make_ocr_draft(dump, provenance, reference_versions())


def make_gemma_vision():
    import gemma_vision

    gemma_vision.make_gemma_vision(dump, provenance, reference_versions())


def make_qwen_vision():
    import qwen_vision

    qwen_vision.make_qwen_vision(dump, provenance, reference_versions())


def make_glm_vision():
    import glm_vision

    glm_vision.make_glm_vision(dump, provenance, reference_versions())


def make_draft():
    # A file and an environment of its own: it needs the reference drafters (see there).
    import draft

    draft.make_draft()


def make_draft_tokens():
    # As above.
    import draft_tokens

    draft_tokens.make_draft_tokens()


def make_chains():
    # As make_draft.
    import chains

    chains.make_chains()


def make_mtp():
    # As make_draft.
    import mtp

    mtp.make_mtp()


def make_mtp_glm():
    # Without an environment of its own, unlike the parts around it.
    import mtp_glm

    mtp_glm.make_mtp_glm()


def make_hybrid_draft():
    # As make_draft.
    import hybrid_draft

    hybrid_draft.make_hybrid_draft()


def make_gemma_draft():
    # As make_draft.
    import gemma_draft

    gemma_draft.make_gemma_draft()


def make_assistant():
    # As make_draft.
    import assistant

    assistant.make_assistant()


if __name__ == "__main__":
    parts = {"tiny": make_tiny, "families": make_families, "gemma": make_gemma, "hybrid": make_hybrid, "quantized": make_quantized, "demo": make_demo, "sampling": make_sampling,
             "vision": make_vision, "hybrid_vision": make_hybrid_vision, "gemma_vision": make_gemma_vision, "qwen_vision": make_qwen_vision,
             "ocr_vision": make_ocr_vision, "ocr_draft": make_ocr_draft, "glm_vision": make_glm_vision, "mtp_glm": make_mtp_glm,
             "draft": make_draft, "draft_tokens": make_draft_tokens, "chains": make_chains, "mtp": make_mtp,
             "hybrid_draft": make_hybrid_draft, "gemma_draft": make_gemma_draft, "assistant": make_assistant}
    apart = ("draft", "draft_tokens", "chains", "mtp", "hybrid_draft", "gemma_draft", "assistant")
    for part in sys.argv[1:] or [part for part in parts if part not in apart]:
        parts[part]()
