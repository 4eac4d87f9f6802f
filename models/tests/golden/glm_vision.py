"""Tiny GLM-OCR and GLM-4.1V checkpoints with random weights, and what transformers makes of images and prompts with them.

Called by make.py (`python models/tests/golden/make.py glm_vision`), which see. Besides what that names it needs pillow. Images are drawn
and prompts are made as in vision.py. They are resized by the reference's own processor (Glm46VImageProcessorPil) and kept as the bytes that
come out.

Both are whole model folders: tokenizer (bytes and special tokens, no merges), chat template, preprocessor_config.json.
"""

import copy
import json

import numpy as np

import vision
from hybrid_vision import features_of, is_decided, load
from make import HERE
from vision import SHOTS

# The marks of images have the ids that vision.py gives to Qwen's, so that its prompts fit.
SPECIAL = ["<|endoftext|>", "[gMASK]", "<|user|>", "<|begin_of_image|>", "<|end_of_image|>", "<|image|>", "<|video|>", "<sop>", "<|system|>",
           "<|assistant|>", "<|observation|>"]
# Tokens of a text that a decoder keeps.
PLAIN = ["<think>", "</think>", "<|begin_of_box|>", "<|end_of_box|>"]
IDS = {token: 256 + i for i, token in enumerate(SPECIAL + PLAIN)}
STOPS = [IDS["<|endoftext|>"], IDS["<|user|>"], IDS["<|observation|>"]]
assert [IDS["<|begin_of_image|>"], IDS["<|image|>"], IDS["<|end_of_image|>"]] == [vision.BEGIN, vision.IMAGE, vision.END]
VOCAB = 274  # a few rows more than tokens

# As published: an image stands between its marks, a message begins with its role and a line break.
TEMPLATE = """[gMASK]<sop>
{%- for message in messages -%}
<|{{ message.role }}|>
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' or 'image' in part or 'image_url' in part %}<|begin_of_image|><|image|><|end_of_image|>\
{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>
{% endif -%}
"""
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]

TEXT = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_dropout": 0.0, "pad_token_id": STOPS[0],
        "eos_token_id": STOPS, "dtype": "bfloat16"}
TOWER = {"hidden_size": 24, "hidden_act": "silu", "num_heads": 2, "in_channels": 3, "patch_size": 4, "rms_norm_eps": 1e-5,
         "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 32, "attention_dropout": 0.0}
MODELS = {
    # As GLM-OCR: heads wider than hidden / heads, a layer behind the last one that predicts a further token, a tower with biases and
    # norms of heads.
    "glm-ocr-tiny": {
        "model_type": "glm_ocr", "class": "GlmOcr",
        "text": {**TEXT, "num_hidden_layers": 2, "head_dim": 16, "intermediate_size": 32, "num_nextn_predict_layers": 1,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}},
        "vision": {**TOWER, "depth": 2, "hidden_size": 16, "intermediate_size": 24, "image_size": 24, "attention_bias": True},
    },
    # As GLM-4.1V: biases of q, k and v, half of a head turns, old rotary keys, a table of positions that every image resamples.
    "glm4v-tiny": {
        "model_type": "glm4v", "class": "Glm4v",
        "text": {**TEXT, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "attention_bias": True,
                 "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        "vision": {**TOWER, "depth": 3, "intermediate_size": 56, "image_size": 20, "attention_bias": False},
    },
}
# Questions about images as clients ask them, with the images' names.
SERVED = [("Text Recognition:", ["exact"]), ("And these?", ["small", "exact"])]


def config(spec):
    return {"architectures": [f"{spec['class']}ForConditionalGeneration"], "model_type": spec["model_type"], "tie_word_embeddings": False,
            "text_config": {"model_type": f"{spec['model_type']}_text", **spec["text"]},
            "vision_config": {"model_type": f"{spec['model_type']}_vision", **spec["vision"]},
            "image_start_token_id": vision.BEGIN, "image_end_token_id": vision.END, "image_token_id": vision.IMAGE,
            "video_token_id": IDS["<|video|>"]}


def reference(spec):
    """The model without its weights."""
    import torch
    import transformers

    # A copy: transformers writes into the rotary keys.
    keys = {key: value for key, value in copy.deepcopy(config(spec)).items() if key not in ("architectures", "model_type")}
    keys["text_config"] = {key: value for key, value in keys["text_config"].items() if key != "dtype"}
    made = getattr(transformers, f"{spec['class']}Config")(**keys)
    rope, named = made.text_config.rope_parameters, spec["text"].get("rope_parameters", spec["text"].get("rope_scaling"))
    assert rope["mrope_section"] == named["mrope_section"], rope
    assert rope.get("partial_rotary_factor", 1.0) == spec["text"].get("partial_rotary_factor", 1.0), rope
    model = getattr(transformers, f"{spec['class']}ForConditionalGeneration")(made).eval().to(torch.float32)
    model.set_attn_implementation("eager")
    return model


def weights(model, spec, seed):
    """In the layout of transformers, as stored."""
    import torch

    return {name: tensor.to(torch.bfloat16) for name, tensor in vision.weights(model, seed).items()}


def next_layer(model, spec, stored, seed):
    """The tensors of a layer that predicts a further token, under the number after the last layer's."""
    import torch

    if not spec["text"].get("num_nextn_predict_layers"):
        return {}
    generator, hidden = torch.Generator().manual_seed(seed + 1_000_000), spec["text"]["hidden_size"]
    first, own = "model.language_model.layers.0.", f"model.language_model.layers.{spec['text']['num_hidden_layers']}."

    def randn(gain, shape):
        return (torch.randn(shape, generator=generator) * gain).to(torch.bfloat16)

    out = {}
    for name, tensor in stored.items():
        if name.startswith(first):
            gain = 0.3 if tensor.ndim == 1 else 1.5 / tensor.shape[1] ** 0.5
            out[own + name.removeprefix(first)] = randn(gain, tensor.shape) + (1.0 if tensor.ndim == 1 else 0.0)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        out[f"{own}{norm}.weight"] = 1.0 + randn(0.3, (hidden,))
    out[f"{own}eh_proj.weight"] = randn(1.0 / hidden**0.5, (hidden, 2 * hidden))
    out[f"{own}embed_tokens.weight"] = stored["model.language_model.embed_tokens.weight"].clone()
    return out


def processor_config(spec):
    side = spec["vision"]["patch_size"]
    # The limits count the pixels of both frames.
    return {"size": {"shortest_edge": 2 * (side * 2) ** 2 * 4, "longest_edge": 2 * (side * 2) ** 2 * 512}, "do_rescale": True,
            "patch_size": side, "temporal_patch_size": 2, "merge_size": 2, "image_mean": MEAN, "image_std": STD,
            "image_processor_type": "Glm46VImageProcessor"}


def write(folder, spec, stored):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(spec), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOPS}) + "\n")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    (folder / "preprocessor_config.json").write_text(json.dumps(processor_config(spec), indent=1) + "\n")
    vision.write_tokenizer(folder, IDS, {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "bos_token": None,
        "model_max_length": spec["text"]["max_position_embeddings"], "chat_template": TEMPLATE}, plain=PLAIN)


def images(spec):
    """→ {name: (pixels after the reference's resize, its pixel_values, grid)}"""
    from PIL import Image
    from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil

    made = processor_config(spec)
    made.pop("image_processor_type")
    processor, side = Glm46VImageProcessorPil(**made), spec["vision"]["patch_size"]
    out = {}
    for seed, (name, (tall, wide)) in enumerate(SHOTS.items()):
        image = vision.draw(round(tall * side * 2), round(wide * side * 2), seed)
        done = processor(Image.fromarray(image), return_tensors="pt")
        grid = [int(n) for n in done["image_grid_thw"][0]]
        assert (image.shape[:2] == (grid[1] * side, grid[2] * side)) == (name != "resized"), name
        pixels = vision.unpatch(done["pixel_values"].numpy(), grid, side, np.array(MEAN), np.array(STD))
        assert name == "resized" or (pixels == image).all(), name
        out[name] = (pixels, done["pixel_values"], done["image_grid_thw"])
    return out


def served_prompt(text, names, shots):
    """What TEMPLATE and the tokenizer make of a user's message: images, then a text."""
    marks = []
    for name in names:
        _, rows, columns = shots[name][2][0].tolist()
        marks += [vision.BEGIN, *[vision.IMAGE] * (rows * columns // 4), vision.END]
    return [IDS["[gMASK]"], IDS["<sop>"], IDS["<|user|>"], *b"\n", *marks, *text.encode(), IDS["<|assistant|>"], *b"\n"]


def served(model, shots):
    """Answers to SERVED; None if a choice is too close, would end the answer, or is no byte."""
    out = []
    for text, names in SERVED:
        ids = served_prompt(text, names, shots)
        greedy, margins, *_ = vision.answer(model, ids, names, shots)
        if not is_decided(greedy, margins) or max(greedy) > 255:
            return None
        out.append({"text": text, "images": names, "prompt": ids, "greedy": greedy})
    return out


def cases_of(model, shots, taps, seed):
    """Answers to the prompts of vision.py; None if a choice is too close."""
    out = []
    for ids, names in vision.prompts(shots, seed):
        greedy, margins, logits, hidden, positions = vision.answer(model, ids, names, shots)
        if not is_decided(greedy, margins):
            return None
        rows = vision.tap_rows(ids)
        out.append({"prompt": ids, "images": names, "positions": positions, "logits": vision.row(logits),
                    "taps": [[vision.row(hidden[layer + 1][at]) for layer in taps] for at in rows], "tap_rows": rows,
                    "greedy": greedy, "margins": [round(m, 5) for m in margins]})
    return out


def make_glm_vision(dump, provenance, versions):
    import PIL
    import torch

    torch.set_num_threads(1)
    for name, spec in MODELS.items():
        # All but the last: of that transformers records what is behind the final norm.
        taps = list(range(spec["text"]["num_hidden_layers"] - 1))
        model, shots = reference(spec), images(spec)
        for seed in range(10_000):
            stored = weights(model, spec, seed)
            load(model, stored)
            answers = served(model, shots)
            cases = cases_of(model, shots, taps, seed) if answers else None
            if cases:
                break
        write(HERE / name, spec, {**stored, **next_layer(model, spec, stored, seed)})
        with torch.inference_mode():
            features = [features_of(model, *shots[shot]) | {"name": shot, "mean": MEAN, "std": STD} for shot in SHOTS]
        dump(HERE / f"{name}.json", {
            "provenance": provenance("glm_vision", **versions, pillow=PIL.__version__),
            "checkpoint": f"models/tests/golden/{name}",
            "arithmetic": "weights stored as bfloat16, widened to float32; float32 arithmetic; eager attention; processor: CPU",
            "seed": seed,
            "meaning": {
                "images": "rows, columns in patches; pixels: bytes after the processor's resize, hex; mean and std: of a byte's share of "
                          "255; merged: the rows that take the placeholders' places",
                "cases": "images: names, in the order of the prompt; positions: time, height, width; logits: of the last prompt row; "
                         "taps: transformers' hidden_states[layer + 1] of tap_layers at tap_rows; greedy: ids chosen after the prompt, "
                         "stop tokens ignored, ties: lowest id; margins: best minus second logit of each choice",
                "served": f"ids of a user's message of images and a text in the template of {name}, and those chosen after them",
            },
            "tap_layers": taps,
            "images": features,
            "served": answers,
            "cases": cases,
        })
