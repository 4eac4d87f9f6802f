"""Tiny Qwen2-VL, Qwen2.5-VL and Qwen3-VL checkpoints, the last with experts, and what transformers makes of images and prompts.

Called by make.py (`python models/tests/golden/make.py qwen_vision`), which see. Besides what that names it needs pillow. Images,
prompts and the files of a whole model folder are made as in vision.py, answers to whole messages as in hybrid_vision.py.
"""

import json

import hybrid_vision
import vision
from make import HERE
from vision import IDS, IMAGE, SHOTS, STOPS, VOCAB

TEXT = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
TOWER = {"depth": 3, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}

# `in_16_bits`: the seed is one with which the reference in bfloat16 stays within the bound of models that compute so. Of Qwen2.5-VL
# none of the first 1,100 seeds was one, and experts have no product in that type.
MODELS = {
    # As published: a flat config, names without a prefix, tied, old rotary keys.
    "qwen2-vl-tiny": {
        "model_type": "qwen2_vl", "tied": True, "flat": True, "in_16_bits": True,
        "text": {**TEXT, "rope_theta": 10000.0, "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 3]}},
        "vision": {**TOWER, "embed_dim": 24, "hidden_size": 48, "mlp_ratio": 2, "hidden_act": "quick_gelu", "in_chans": 3},
    },
    # As published, in the newer layout: an own head; windows of 2 by 2 rows of the prompt, smaller ones at the edges.
    "qwen2_5-vl-tiny": {
        "model_type": "qwen2_5_vl", "tied": False, "flat": False, "in_16_bits": False,
        "text": {**TEXT, "hidden_size": 40, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 2]}},
        "vision": {**TOWER, "hidden_size": 24, "out_hidden_size": 40, "intermediate_size": 40, "hidden_act": "silu", "window_size": 16,
                   "fullatt_block_indexes": [1]},
    },
    # Experts in one tensor, inputs as rows; one layer without experts.
    "qwen3-vl-moe-tiny": {
        "model_type": "qwen3_vl_moe", "tied": False, "flat": False, "in_16_bits": False,
        "text": {**TEXT, "hidden_size": 24, "intermediate_size": 32, "head_dim": 16, "moe_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 2,
                 "mlp_only_layers": [1], "decoder_sparse_step": 1,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}},
        "vision": {**TOWER, "hidden_size": 16, "out_hidden_size": 24, "intermediate_size": 24, "hidden_act": "gelu_pytorch_tanh",
                   "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]},
    },
}
CLASSES = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl_moe": "Qwen3VLMoe"}


def config(spec):
    ids = {"image_token_id": IMAGE, "video_token_id": IDS["<|video_pad|>"], "vision_start_token_id": vision.BEGIN,
           "vision_end_token_id": vision.END}
    about = {"architectures": [f"{CLASSES[spec['model_type']]}ForConditionalGeneration"], "model_type": spec["model_type"],
             "tie_word_embeddings": spec["tied"], "torch_dtype": "bfloat16"}
    if spec["flat"]:
        flat = {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 28}
        return {**about, **ids, **spec["text"], **flat, "vision_config": {"model_type": spec["model_type"], **spec["vision"]}}
    return {**about, **ids, "text_config": {"model_type": f"{spec['model_type']}_text", **spec["text"]},
            "vision_config": {"model_type": spec["model_type"], **spec["vision"]}}


def reference(spec):
    """The model without its weights."""
    import torch
    import transformers

    name = CLASSES[spec["model_type"]]
    text, rope = dict(spec["text"]), spec["text"].get("rope_parameters")
    if rope is None:
        rope = {"rope_type": "default", "rope_theta": text.pop("rope_theta"),
                "mrope_section": text.pop("rope_scaling")["mrope_section"]}
    text |= {"rope_parameters": rope, "bos_token_id": None, "eos_token_id": STOPS[1], "pad_token_id": None}
    made = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config=dict(spec["vision"]), tie_word_embeddings=spec["tied"], image_token_id=IMAGE,
        video_token_id=IDS["<|video_pad|>"], vision_start_token_id=vision.BEGIN, vision_end_token_id=vision.END)
    assert made.text_config.rope_parameters["mrope_section"] == rope["mrope_section"]
    model = getattr(transformers, f"{name}ForConditionalGeneration")(made).eval().to(torch.float32)
    model.set_attn_implementation("eager")
    return model


def weights(model, spec, seed):
    """By transformers' own names, as stored. The router's are large, so that its choices are far apart."""
    import torch

    made = vision.weights(model, seed)
    out = {}
    for name, tensor in made.items():
        if ".mlp.gate.weight" in name:
            tensor = 3 * tensor
        out[name] = tensor.to(torch.bfloat16)
    if spec["tied"]:
        out["lm_head.weight"] = out["model.language_model.embed_tokens.weight"]
    return out


def published(tensors, spec):
    """Names and axes as published checkpoints have them."""
    out = {}
    for name, tensor in tensors.items():
        if spec["flat"]:
            name = name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
        if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            tensor = tensor.transpose(1, 2).contiguous()
        if not (spec["tied"] and name == "lm_head.weight"):
            out[name] = tensor
    return out


def write(folder, spec, stored):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(spec), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOPS}) + "\n")
    save_file(published(stored, spec), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    vision.write_processor(folder, spec)


def features_of(model, pixels, values, grid):
    out = model.model.get_image_features(values, grid, return_dict=True)
    levels = getattr(out, "deepstack_features", None) or []
    return {"rows": int(grid[0, 1]), "columns": int(grid[0, 2]), "pixels": pixels.tobytes().hex(),
            "merged": vision.row(out.pooler_output[0]), "deepstack": [vision.row(level[0]) for level in levels]}


def make_qwen_vision(dump, provenance, versions):
    import PIL
    import torch

    torch.set_num_threads(1)
    for name, spec in MODELS.items():
        # All but the last: of that transformers records what is behind the final norm.
        taps = list(range(spec["text"]["num_hidden_layers"] - 1))
        model, half, shots = reference(spec), reference(spec).to(torch.bfloat16), vision.images(spec)
        for seed in range(10_000):
            stored = weights(model, spec, seed)
            model.load_state_dict({key: tensor.float() for key, tensor in stored.items()})
            cases = []
            for ids, names in vision.prompts(shots, seed):
                greedy, margins, logits, hidden, positions = vision.answer(model, ids, names, shots)
                rows = vision.tap_rows(ids)
                cases.append({"prompt": ids, "images": names, "positions": positions, "logits": vision.row(logits),
                              "taps": [[vision.row(hidden[layer + 1][at]) for layer in taps] for at in rows], "tap_rows": rows,
                              "greedy": greedy, "margins": [round(m, 5) for m in margins]})
                if not hybrid_vision.is_decided(greedy, margins):
                    break
            decided = len(cases) == len(vision.prompts(shots, seed)) and hybrid_vision.is_decided(greedy, margins)
            answers = hybrid_vision.served(model, shots) if decided else None
            if answers is not None:
                lost = vision.lost_in_16_bits(half, model, stored, cases, shots)
                print(f"{name}, seed {seed}: bfloat16 loses {lost:.3f}")
                if lost < vision.MOST_LOST or not spec["in_16_bits"]:
                    break
        write(HERE / name, spec, stored)
        with torch.inference_mode():
            features = [features_of(model, *shots[shot]) | {"name": shot} for shot in SHOTS]
        dump(HERE / f"{name}.json", {
            "provenance": provenance("qwen_vision", **versions, pillow=PIL.__version__),
            "checkpoint": f"models/tests/golden/{name}",
            "arithmetic": "weights stored as bfloat16, widened to float32; float32 arithmetic; eager attention; processor: CPU",
            "seed": seed,
            "meaning": {
                "images": "rows, columns in patches; pixels: bytes after the processor's resize, hex; merged: the rows that take the "
                            "placeholders' places; deepstack: the rows added behind layer 0, 1, …",
                "cases": "images: names, in the order of the prompt; positions: time, height, width; logits: of the last prompt row; "
                         "taps: transformers' hidden_states[layer + 1] of tap_layers at tap_rows; greedy: ids chosen after the prompt, "
                         "stop tokens ignored, ties: lowest id; margins: best minus second logit of each choice",
                "served": "ids of a user's message of images and a text in the checkpoint's template, and those chosen after them",
            },
            "tap_layers": taps,
            "images": features,
            "served": answers,
            "cases": cases,
        })
