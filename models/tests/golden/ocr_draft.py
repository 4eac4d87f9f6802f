"""A tiny DFlash drafter with random weights for `hunyuan_vl-tiny`, and what it drafts after prompts with images.

Called by make.py (`python models/tests/golden/make.py ocr_draft`), which see. The target and its prompts are those of ocr_vision.py. The
drafter is written here after the vendor's `train/dflash_draft.py` (Tencent-Hunyuan/HunyuanOCR): layers of Qwen3 whose keys and values are of
the context and of the block, no mask, and positions that are indices of tokens although the target's rows have four axes.
"""

import json
import math

import ocr_vision
from make import HERE
from ocr_vision import FAMILIES
from vision import row

NAME, TARGET = "dflash-hunyuan_vl", "hunyuan_vl-tiny"
BLOCK, MASK = 8, 263
TAPS = [0, 1]
LEAST_MARGIN = 0.01
# The prompts of ocr_vision.prompts after which it drafts: one image, two of them, none.
DRAFTED_AFTER = [0, 3, 5]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
         "intermediate_size": 40, "vocab_size": ocr_vision.VOCAB, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu",
         "attention_bias": False, "rope_theta": 10000.0, "tie_word_embeddings": False}


def config():
    target = FAMILIES[TARGET]["text"]
    return {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", **SIZES, "block_size": BLOCK,
            "num_target_layers": target["num_hidden_layers"], "dtype": "bfloat16",
            "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAPS}}


def weights(seed):
    import torch

    generator = torch.Generator().manual_seed(seed)
    hidden, heads, kv, dim, inner = (SIZES[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                                                            "intermediate_size"))
    shapes = {"fc.weight": (hidden, len(TAPS) * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for layer in range(SIZES["num_hidden_layers"]):
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,),
            "self_attn.q_proj": (heads * dim, hidden), "self_attn.k_proj": (kv * dim, hidden), "self_attn.v_proj": (kv * dim, hidden),
            "self_attn.o_proj": (hidden, heads * dim), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner)}.items()}

    def made(shape):
        numbers = torch.randn(shape, generator=generator)
        return 1.0 + 0.2 * numbers if len(shape) == 1 else numbers * 1.2 / math.sqrt(shape[1])

    return {name: made(shape).to(torch.bfloat16) for name, shape in shapes.items()}


def drafted(stored, context, block):
    """Hidden rows of the block `[rows, hidden]` behind `context` `[rows, taps]`, after the last norm."""
    import torch
    from torch.nn.functional import linear, silu

    by = {name: tensor.to(context.dtype) for name, tensor in stored.items()}
    heads, dim = SIZES["num_attention_heads"], SIZES["head_dim"]

    def norm(x, name):
        x = x.float()
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + SIZES["rms_norm_eps"])).to(context.dtype) * by[f"{name}.weight"]

    def turned(x, positions):
        frequencies = SIZES["rope_theta"] ** (-torch.arange(0, dim, 2) / dim)
        angles = torch.cat([positions[:, None] * frequencies] * 2, dim=-1)[:, None]
        halves = torch.cat([-x[..., dim // 2:], x[..., : dim // 2]], dim=-1)
        return x * angles.cos().to(x.dtype) + halves * angles.sin().to(x.dtype)

    context = norm(linear(context, by["fc.weight"]), "hidden_norm")
    positions, x = torch.arange(len(context) + len(block)), block
    for layer in range(SIZES["num_hidden_layers"]):
        name = f"layers.{layer}"

        def part(of, rows):
            return linear(rows, by[f"{name}.self_attn.{of}_proj.weight"]).view(len(rows), -1, dim)

        h = norm(x, f"{name}.input_layernorm")
        rows = torch.cat([context, h])
        q = turned(norm(part("q", h), f"{name}.self_attn.q_norm"), positions[len(context):])
        k = turned(norm(part("k", rows), f"{name}.self_attn.k_norm"), positions).repeat_interleave(heads, 1)
        v = part("v", rows).repeat_interleave(heads, 1)
        shares = torch.einsum("qhd,khd->hqk", q, k).mul(dim**-0.5).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", shares, v).reshape(len(h), -1)
        x = x + linear(attended, by[f"{name}.self_attn.o_proj.weight"])
        h = norm(x, f"{name}.post_attention_layernorm")
        inner = silu(linear(h, by[f"{name}.mlp.gate_proj.weight"])) * linear(h, by[f"{name}.mlp.up_proj.weight"])
        x = x + linear(inner, by[f"{name}.mlp.down_proj.weight"])
    return norm(x, "norm")


def block_rows(model, stored, case, shots):
    """The block's hidden rows behind a prompt, in the type of the model, and the bonus token."""
    import torch

    greedy, _, _, hidden, _ = ocr_vision.answer(model, FAMILIES[TARGET], case["prompt"], case["images"], shots, more=1)
    with torch.inference_mode():
        context = torch.cat([hidden[layer + 1] for layer in TAPS], dim=-1)
        block = model.model.language_model.embed_tokens.weight[case["greedy"][:1] + [MASK] * (BLOCK - 1)]
        return drafted(stored, context, block)[1:], greedy[0]


def cases(model, half, stored, golden, shots):
    """What the golden file has of prompts; None if a draft is too close, or bfloat16 loses much: see ocr_vision.py."""
    import torch

    out = []
    for at in DRAFTED_AFTER:
        case = golden["cases"][at]
        rows, bonus = block_rows(model, stored, case, shots)
        assert bonus == case["greedy"][0]
        lost = (block_rows(half, stored, case, shots)[0].float() - rows).abs().max() / rows.abs().max()
        with torch.inference_mode():
            best = model.lm_head(rows).topk(2)
        if float((best.values[:, 0] - best.values[:, 1]).min()) < LEAST_MARGIN or lost > ocr_vision.MOST_LOST:
            return None
        out.append({"case": at, "bonus": bonus, "hidden": row(rows), "drafted": best.indices[:, 0].tolist()})
    return out


def make_ocr_draft(dump, provenance, versions):
    import torch
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(1)
    family, golden = FAMILIES[TARGET], json.loads((HERE / f"{TARGET}.json").read_text())
    model, shots = ocr_vision.reference(family), ocr_vision.images(family)
    # The numbers that the target's own recipe draws from its seed are those in its file.
    target = ocr_vision.weights(model, family, golden["seed"])
    held = load_file(HERE / TARGET / "model.safetensors")
    assert all(torch.equal(held[name], tensor) for name, tensor in ocr_vision.published(family, target).items())
    model.load_state_dict({name: tensor.float() for name, tensor in target.items()})
    half = ocr_vision.reference(family).to(torch.bfloat16)
    half.load_state_dict(target)
    for seed in range(1000):
        stored = weights(seed)
        found = cases(model, half, stored, golden, shots)
        if found is not None:
            break
    folder = HERE / NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(), indent=1) + "\n")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    dump(HERE / f"{NAME}.json", {
        "provenance": provenance("ocr_draft", **versions),
        "target": f"models/tests/golden/{TARGET}",
        "drafter": f"models/tests/golden/{NAME}",
        "arithmetic": "weights stored as bfloat16, widened to float32; float32 arithmetic; processor: CPU",
        "seed": seed,
        "meaning": {"cases": "case: of the target's golden file; bonus: the target's id after its prompt; hidden: the block's rows after the "
                             "bonus token's, after the final norm; drafted: the best ids of these rows by the target's head"},
        "cases": found,
    })
