"""Tiny Gemma 4 checkpoints with random weights that read images, and what transformers makes of images and prompts with them: a tower that
standardizes (as 31B, and with experts as 26B-A4B), one that clamps (as E2B), and the model without a tower (as 12B).

Called by make.py (`python models/tests/golden/make.py gemma_vision`), which see. Besides what that names it needs pillow. Text models are
made as in gemma.py, images are drawn as in vision.py, resized by the reference's own processor (Gemma4ImageProcessorPil), and kept as the
bytes that come out. The reference of the model without a tower has a processor for torchvision alone: its squares are cut here.

Gemma4UnifiedModel.forward of transformers 5.23 lets rows of an image attend both ways in full layers, too, which Gemma4Model.forward does not.
Its `create_masks_for_generate`, for caches of a fixed size, does not either. Its masks are used here for both.
"""

import json
import math

import numpy as np

import gemma
from families import LEAST_ROUTING_MARGIN
from gemma import COMMON, kinds
from hybrid_vision import load
from make import GREEDY_TOKENS, HERE, LEAST_MARGIN, STOP_IDS
from vision import draw, row

# √36 and √16 are numbers of every type; see gemma.py.
TEXT = {**COMMON, "hidden_size": 36, "vocab_size": 128, "intermediate_size": 40, "max_position_embeddings": 512, "pad_token_id": 0,
        "dtype": "bfloat16"}
BEGIN, IMAGE, END = 120, 121, 122
# Values that are not on any path of these models.
WITHOUT = {"audio_token_id": 125, "video_token_id": 126, "boa_token_id": 123, "eoa_token_index": 124}
TOWER = {"hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
         "head_dim": 12, "patch_size": 2, "pooling_kernel_size": 3, "position_embedding_size": 64, "hidden_activation": "gelu_pytorch_tanh",
         "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}
MODELS = {
    "gemma4-vl-tiny": {
        "model_type": "gemma4",
        "text": {**TEXT, "model_type": "gemma4_text", "num_hidden_layers": 3, "layer_types": kinds("ssf"), "num_key_value_heads": 2,
                 "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
                 "use_bidirectional_attention": "vision"},
        "vision": {**TOWER, "model_type": "gemma4_vision", "standardize": True, "use_clipped_linears": False},
    },
    # As 26B-A4B: experts beside a dense block.
    "gemma4-vl-moe": {
        "model_type": "gemma4",
        "text": {**TEXT, "model_type": "gemma4_text", "num_hidden_layers": 2, "layer_types": kinds("sf"), "num_key_value_heads": 2,
                 "attention_k_eq_v": True, "num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2,
                 "moe_intermediate_size": 12, "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"},
        "vision": {**TOWER, "model_type": "gemma4_vision", "num_hidden_layers": 1, "standardize": True, "use_clipped_linears": False},
    },
    "gemma4-vl-edge": {
        "model_type": "gemma4",
        "text": {**TEXT, "model_type": "gemma4_text", "num_hidden_layers": 4, "layer_types": kinds("sfsf"), "num_key_value_heads": 1,
                 "attention_k_eq_v": False, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 128, "num_kv_shared_layers": 2,
                 "use_double_wide_mlp": True, "intermediate_size": 16, "pad_token_id": 7},
        "vision": {**TOWER, "model_type": "gemma4_vision", "head_dim": 8, "intermediate_size": 20, "standardize": False,
                   "use_clipped_linears": True},
    },
    "gemma4-unified-tiny": {
        "model_type": "gemma4_unified",
        "text": {**TEXT, "model_type": "gemma4_unified_text", "num_hidden_layers": 3, "layer_types": kinds("sff"),
                 "num_key_value_heads": 2, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "use_bidirectional_attention": "vision"},
        "vision": {"model_type": "gemma4_unified_vision", "patch_size": 2, "pooling_kernel_size": 3, "mm_embed_dim": 28, "mm_posemb_size": 32,
                   "output_proj_dims": 28, "rms_norm_eps": 1e-6},
    },
}
# (height, width) drawn, in rows of the prompt; an exact one fills the budget of 70 rows.
SHOTS = {"exact": (7, 10), "resized": (5.3, 3.1), "wide": (1.5, 9)}
BUDGET = 70
# Rows of images are much alike, and so are answers of random weights to them.
LEAST_DISTINCT = 8
# Ids that the reference takes for a part of an image or of sound.
MARKS = {IMAGE, *WITHOUT.values()}


def config(spec):
    text = {key: value for key, value in spec["text"].items() if key != "architectures"}
    name = {"gemma4": "Gemma4", "gemma4_unified": "Gemma4Unified"}[spec["model_type"]]
    return {"architectures": [f"{name}ForConditionalGeneration"], "model_type": spec["model_type"], "text_config": text,
            "vision_config": spec["vision"], "audio_config": None, "image_token_id": IMAGE, "boi_token_id": BEGIN, "eoi_token_id": END,
            "tie_word_embeddings": True, **WITHOUT}


def keep_full_layers_causal(model):
    """Lets the model compute with the masks of its own `create_masks_for_generate`."""
    import torch

    inner, forward = model.model, model.model.forward

    def with_masks(input_ids, attention_mask, past_key_values, mm_token_type_ids=None, position_ids=None, **named):
        if mm_token_type_ids is not None:
            sizes = torch.empty((*input_ids.shape, 0))
            attention_mask = model.create_masks_for_generate(model.config, sizes, attention_mask, past_key_values, position_ids,
                                                             mm_token_type_ids)
            mm_token_type_ids = None
        return forward(input_ids=input_ids, attention_mask=attention_mask, past_key_values=past_key_values, position_ids=position_ids,
                       mm_token_type_ids=mm_token_type_ids, **named)

    inner.forward = with_masks


def reference(spec):
    """The model without its weights."""
    import torch
    from transformers import (Gemma4Config, Gemma4ForConditionalGeneration, Gemma4UnifiedConfig,
                              Gemma4UnifiedForConditionalGeneration)

    of_config, of_model = {"gemma4": (Gemma4Config, Gemma4ForConditionalGeneration),
                           "gemma4_unified": (Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration)}[spec["model_type"]]
    keys = {key: value for key, value in config(spec).items() if key not in ("architectures", "model_type")}
    keys["text_config"] = {key: value for key, value in keys["text_config"].items() if key != "dtype"}
    model = of_model(of_config(**keys)).eval().to(torch.float32)
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = None
    keep_full_layers_causal(model)
    return model


def to_published(name):
    """Checkpoints of the model without a tower have names of their own; see conversion_mapping.py of transformers."""
    if "embed_vision.multimodal_embedder." in name:
        return name.replace("embed_vision.multimodal_embedder.", "embed_vision.")
    return name.replace("model.embed_vision.p", "model.vision_embedder.p")


def weights(model, spec, seed):
    """As stored, by the reference's names: text as in gemma.py, and numbers of towers so large that every part matters."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    text = gemma.random_weights({"hidden_size_per_layer_input": 0, **spec["text"]}, seed)
    out = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in text.items()}
    for name, tensor in model.state_dict().items():
        if "vision" not in name:
            continue

        def randn(gain, shape=tensor.shape):
            return torch.randn(shape, generator=generator) * gain

        last = name.split(".")[-1]
        if last in ("input_min", "output_min"):
            made = -1.0 - 0.4 * torch.rand((), generator=generator)
        elif last in ("input_max", "output_max"):
            made = 1.0 + 0.4 * torch.rand((), generator=generator)
        elif last == "std_scale":
            made = 0.3 + 0.1 * torch.rand(tensor.shape, generator=generator)
        elif last == "bias" or last == "std_bias":
            made = randn(0.3)
        elif "position_embedding_table" in name or "pos_embedding" in name:
            made = randn(0.5)
        elif tensor.ndim == 1:
            made = 1.0 + randn(0.3)
        elif "embedding_projection" in name:
            made = randn(0.7 / math.sqrt(tensor.shape[1]))
        else:
            made = randn(1.5 / math.sqrt(tensor.shape[1]))
        out[name] = made.to(torch.bfloat16)
    return out


def write(folder, spec, stored):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(spec), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOP_IDS}) + "\n")
    processor = {"image_processor": {"max_soft_tokens": BUDGET, "patch_size": 2, "pooling_kernel_size": 3, "resample": 3,
                                     "do_normalize": False, "image_processor_type": "Gemma4ImageProcessor"}}
    (folder / "processor_config.json").write_text(json.dumps(processor, indent=1) + "\n")
    save_file({to_published(name): tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone


def images(spec):
    """→ {name: (pixels after the reference's resize, what the model gets, positions of the model's patches, rows and columns of patches)}"""
    import torch
    from PIL import Image
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    side, pooled = spec["vision"]["patch_size"], spec["vision"]["pooling_kernel_size"]
    processor = Gemma4ImageProcessorPil(patch_size=side, pooling_kernel_size=pooled, max_soft_tokens=BUDGET)
    out = {}
    for seed, (name, (tall, wide)) in enumerate(SHOTS.items()):
        image = draw(round(tall * side * pooled), round(wide * side * pooled), seed)
        done = processor(Image.fromarray(image), return_tensors="pt")
        values, positions = done["pixel_values"], done["image_position_ids"]
        columns, rows = (int(n) + 1 for n in positions[0].amax(0))
        assert rows * columns == int(done["num_soft_tokens_per_image"][0]) * pooled**2, name
        flat = values[0, : rows * columns].numpy().reshape(rows, columns, side, side, 3).transpose(0, 2, 1, 3, 4)
        flat = flat.reshape(rows * side, columns * side, 3)
        pixels = np.round(flat * 255.0).astype(np.uint8)
        assert np.abs(pixels / 255.0 - flat).max() < 1e-6
        assert (image.shape == pixels.shape and (pixels == image).all()) == (name == "exact"), name
        if spec["model_type"] == "gemma4_unified":
            values, positions = squares(flat, side * pooled)
        out[name] = (pixels, torch.as_tensor(values), torch.as_tensor(positions), (rows, columns))
    return out


def squares(image, side):
    """What `patches_merge` of the reference makes of an image: squares from the top, left to right, each (row, column, channel)."""
    rows, columns = image.shape[0] // side, image.shape[1] // side
    flat = image.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4).reshape(1, rows * columns, side * side * 3)
    y, x = np.divmod(np.arange(rows * columns), columns)
    return np.ascontiguousarray(flat, dtype=np.float32), np.stack([x, y], -1)[None]


def rows_of(shot):
    rows, columns = shot[3]
    return rows * columns // 9


def prompts(shots, seed):
    """Prompts as (ids, names of their images)."""
    rng = np.random.default_rng(seed)

    def prompt(*parts):
        ids = []
        for part in parts:
            ids += [BEGIN, *[IMAGE] * rows_of(shots[part]), END] if isinstance(part, str) else rng.integers(2, BEGIN, part).tolist()
        return ids, [part for part in parts if isinstance(part, str)]

    return [prompt(5, "exact", 9), prompt(7, "resized", 4), prompt(3, "wide", 2, "exact", 30), prompt(40)]


def watch_routing(model, spec):
    """→ (list that is filled with each row's routing margin, hooks); see gemma.py."""
    margins, count = [], spec["text"].get("top_k_experts")

    def margin(_module, _inputs, out):
        best = out[0].reshape(-1, out[0].shape[-1]).topk(count + 1).values
        margins.extend((best[:, -2] - best[:, -1]).tolist())

    layers = model.model.language_model.layers if count else []
    return margins, [layer.router.register_forward_hook(margin) for layer in layers]


def answer(model, ids, names, shots):
    """→ (ids, margins, logits of the last prompt row)."""
    import torch

    rows = torch.tensor([ids])
    extra = {"mm_token_type_ids": (rows == IMAGE).int()} if names else {}
    if names:
        values, positions = [shots[name][1] for name in names], [shots[name][2] for name in names]
        most = max(value.shape[1] for value in values)
        pad = torch.nn.functional.pad
        extra["pixel_values"] = torch.cat([pad(value, (0, 0, 0, most - value.shape[1])) for value in values])
        extra["image_position_ids"] = torch.cat([pad(at, (0, 0, 0, most - at.shape[1]), value=-1) for at in positions])
    with torch.inference_mode():
        out = model.generate(rows, attention_mask=torch.ones_like(rows), do_sample=False, max_new_tokens=GREEDY_TOKENS, output_logits=True,
                             return_dict_in_generate=True, pad_token_id=0, **extra)
    logits = torch.cat(out.logits)
    best = logits.topk(2).values
    return logits.argmax(-1).tolist(), (best[:, 0] - best[:, 1]).tolist(), logits[0]


def features_of(model, shot):
    import torch

    pixels, values, positions, (rows, columns) = shot
    with torch.inference_mode():
        out = model.model.get_image_features(values, positions, return_dict=True).pooler_output
    out = torch.cat(list(out)) if isinstance(out, (list, tuple)) else out
    merged = [round(float(x), 5) for x in out.reshape(-1)]
    return {"rows": rows, "columns": columns, "pixels": pixels.tobytes().hex(), "merged": merged, "deepstack": []}


def make_gemma_vision(dump, provenance, versions):
    import PIL
    import torch

    torch.set_num_threads(1)
    for name, spec in MODELS.items():
        model, shots = reference(spec), images(spec)
        for seed in range(10_000):
            stored = weights(model, spec, seed)
            load(model, stored)
            cases = []
            for ids, names in prompts(shots, seed):
                routing, hooks = watch_routing(model, spec)
                greedy, margins, logits = answer(model, ids, names, shots)
                for hook in hooks:
                    hook.remove()
                if min(routing, default=1.0) < LEAST_ROUTING_MARGIN:
                    break
                if min(margins) < LEAST_MARGIN or len(set(greedy)) < LEAST_DISTINCT or set(greedy) & MARKS:
                    break
                cases.append({"prompt": ids, "images": names, "logits": row(logits), "greedy": greedy,
                              "margins": [round(m, 5) for m in margins]})
            if len(cases) == len(prompts(shots, seed)):
                break
        write(HERE / name, spec, stored)
        dump(HERE / f"{name}.json", {
            "provenance": provenance("gemma_vision", **versions, pillow=PIL.__version__),
            "checkpoint": f"models/tests/golden/{name}",
            "arithmetic": "weights stored as bfloat16, widened to float32; float32 arithmetic; eager attention; processor: CPU",
            "seed": seed,
            "meaning": {
                "images": "rows, columns in patches; pixels: bytes after the processor's resize, hex; merged: the rows that take the "
                          "placeholders' places",
                "cases": "images: names, in the order of the prompt; logits: of the last prompt row; greedy: ids of generate after the "
                         "prompt, stop tokens ignored; margins: best minus second logit of each choice",
            },
            "images": [features_of(model, shots[shot]) | {"name": shot} for shot in SHOTS],
            "cases": cases,
        })
