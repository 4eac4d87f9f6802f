"""Tiny PaddleOCR-VL and HunyuanOCR checkpoints with random weights, and what transformers makes of images and prompts with them.

Called by make.py (`python models/tests/golden/make.py ocr_vision`), which see. Besides what that names it needs pillow. Images are drawn as
in vision.py, resized by each family's own processor for Pillow, and kept as the bytes that come out. Both checkpoints are whole model folders
in the layout of the hub: names as published, config.json flat, tokenizers of bytes and special tokens without merges.

Two faults of transformers 5.23 are kept out of the values:

- PaddleOCR-VL: a flat config ties the head to the embedding, whatever it says. Published files have a head of their own, so it is untied here.
- HunyuanOCR: `recomposition_frequencies` splits the doubled vector of frequencies, so that a number and its partner, half a head away, turn
  by different axes. The vendor's `HunYuanVLRotaryEmbedding` splits one half and doubles it afterwards, as Qwen2-VL does. So does the patch.
"""

import json
import math

import numpy as np

from hybrid_vision import is_decided
from make import HERE
from vision import byte_characters, draw, row

VOCAB = 272  # a few rows more than tokens, as published checkpoints have
GREEDY_TOKENS = 32
MOST_LOST = 2.4e-2  # see lost_in_16_bits
# (height, width) drawn, in rows of the prompt. Resampled, tables of positions are neither as large as an image nor of its shape.
SHOTS = {"exact": (3, 4), "resized": (2.7, 4.4), "tall": (4, 1), "small": (2, 2)}
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "intermediate_size": 48, "max_position_embeddings": 2048, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "hidden_act": "silu"}

# In the order of their ids, after those of the 256 bytes.
PADDLE_TOKENS = ["<|begin_of_sentence|>", "</s>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>", "<|video_pad|>"]
HUNYUAN_TOKENS = ["<｜hy_begin▁of▁sentence｜>", "<｜hy_place▁holder▁no▁2｜>", "<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁101｜>",
                  "<｜hy_place▁holder▁no▁102｜>", "<｜hy_place▁holder▁no▁103｜>", "<｜hy_place▁holder▁no▁3｜>", "<｜hy_User｜>", "<｜hy_Assistant｜>"]

# As the published templates: the images of a message come before its texts.
PADDLE_TEMPLATE = """{{- '<|begin_of_sentence|>' -}}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{- 'User: ' -}}
{%- for part in message.content if part.type == 'image' -%}{{- '<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>' -}}{%- endfor -%}
{%- for part in message.content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}
{{- '\\n' -}}
{%- elif message.role == 'assistant' -%}
{{- 'Assistant: ' -}}
{%- for part in message.content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}
{{- '</s>' -}}
{%- elif message.role == 'system' -%}
{%- for part in message.content if part.type == 'text' -%}{{- part.text + '\\n' -}}{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant: ' -}}{%- endif -%}
"""
HUNYUAN_TEMPLATE = """{%- set ns = namespace(turns=messages) -%}
{{- '<｜hy_begin▁of▁sentence｜>' -}}
{%- if messages[0].role == 'system' -%}
{%- set ns.turns = messages[1:] -%}
{{- messages[0].content + '<｜hy_place▁holder▁no▁3｜>' -}}
{%- endif -%}
{%- for message in ns.turns -%}
{%- if message.role == 'user' -%}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<｜hy_place▁holder▁no▁100｜><｜hy_place▁holder▁no▁102｜><｜hy_place▁holder▁no▁101｜>' -}}
{%- elif part.type == 'text' -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<｜hy_User｜>' -}}
{%- elif message.role == 'assistant' -%}
{{- message.content + '<｜hy_Assistant｜>' -}}
{%- endif -%}
{%- endfor -%}
"""


def rows_by_merged_patch(rows, columns):
    return rows * columns // 4


def rows_by_line(rows, columns):
    """A row more for each line of merged patches, one before the image and one after it."""
    return rows // 2 * (columns // 2 + 1) + 2


FAMILIES = {
    "paddleocr_vl-tiny": {
        "architecture": "PaddleOCRVLForConditionalGeneration", "model_type": "paddleocr_vl", "tokens": PADDLE_TOKENS,
        "marks": ["<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>"], "stops": ["</s>"], "template": PADDLE_TEMPLATE,
        "axes": 3, "image_rows": rows_by_merged_patch, "tied": False, "tower": "visual",
        # A head's numbers are unlike hidden / heads. The tower's convolution has no frames although its config names two.
        "text": {**SIZES, "num_attention_heads": 6, "use_bias": False, "rope_theta": 500000.0,
                 "rope_scaling": {"mrope_section": [2, 3, 3], "rope_type": "default", "type": "default"}},
        "vision": {"model_type": "paddleocr_vl", "hidden_act": "gelu_pytorch_tanh", "hidden_size": 24, "image_size": 20,
                   "intermediate_size": 36, "layer_norm_eps": 1e-6, "num_attention_heads": 3, "num_channels": 3, "num_hidden_layers": 3,
                   "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2},
    },
    "hunyuan_vl-tiny": {
        "architecture": "HunYuanVLForConditionalGeneration", "model_type": "hunyuan_vl", "tokens": HUNYUAN_TOKENS,
        "marks": ["<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁102｜>", "<｜hy_place▁holder▁no▁101｜>"],
        "stops": ["<｜hy_place▁holder▁no▁2｜>", "<｜hy_Assistant｜>"], "template": HUNYUAN_TEMPLATE,
        "axes": 4, "image_rows": rows_by_line, "tied": True, "tower": "vision_tower",
        "text": {**SIZES, "attention_bias": False, "mlp_bias": False, "attention_head_dim": 16, "org_vocab_size": VOCAB,
                 "use_qk_norm": True, "rope_theta": 10000.0,
                 "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                  "type": "xdrope", "xdrope_section": [2, 2, 1, 3]}},
        "vision": {"hidden_act": "gelu", "hidden_size": 16, "intermediate_size": 28, "interpolate_mode": "bilinear", "max_image_size": 24,
                   "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 3, "out_hidden_size": 32, "patch_size": 4,
                   "rms_norm_eps": 1e-5, "spatial_merge_size": 2},
    },
}


def ids_of(family):
    return {token: 256 + at for at, token in enumerate(family["tokens"])}


def config(family):
    ids = ids_of(family)
    begin, image, end = (ids[token] for token in family["marks"])
    marks = {"vision_start_token_id": begin, "vision_end_token_id": end, "video_token_id": ids.get("<|video_pad|>", 0)}
    if family["model_type"] == "hunyuan_vl":
        marks = {"im_start_id": begin, "im_end_id": end, "im_newline_id": ids["<｜hy_place▁holder▁no▁103｜>"]}
    return {"architectures": [family["architecture"]], "model_type": family["model_type"], **family["text"], "bos_token_id": 256,
            "eos_token_id": ids[family["stops"][0]], "pad_token_id": 0, "image_token_id": image, **marks,
            "tie_word_embeddings": family["tied"], "torch_dtype": "bfloat16", "vision_config": family["vision"]}


def reference(family):
    """The model without its weights."""
    import torch
    import transformers
    from transformers.models.hunyuan_vl import modeling_hunyuan_vl as hunyuan

    def recomposed(self, angles):
        parts = [axes[at] for at, axes in enumerate(angles.split(self.mrope_section, dim=-1))]
        half = torch.cat(parts, dim=-1)
        return torch.cat((half, half), dim=-1)

    hunyuan.HunYuanVLRotaryEmbedding.recomposition_frequencies = recomposed
    keys = {key: value for key, value in config(family).items() if key not in ("architectures", "model_type", "torch_dtype")}
    made = getattr(transformers, family["architecture"].replace("ForConditionalGeneration", "Config"))(**json.loads(json.dumps(keys)))
    sections = family["text"]["rope_scaling"]
    assert made.text_config.rope_parameters["mrope_section"] == sections.get("mrope_section", sections.get("xdrope_section"))
    model = getattr(transformers, family["architecture"])(made).eval().to(torch.float32)
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = None
    if not family["tied"]:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def weights(model, family, seed):
    """By the reference's names, in bfloat16. Large enough that every part matters: norms away from 1, attention away from uniform, answers
    that do not repeat."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, tensor in model.state_dict().items():
        def randn(gain, shape=tensor.shape):
            return torch.randn(shape, generator=generator) * gain

        is_text = "language_model" in name or name.startswith("lm_head")
        last = name.split(".")[-2]
        if "norm" in last or last in ("before_rms", "after_rms"):
            made = 1.0 + randn(0.3) if name.endswith("weight") else randn(0.2)
        elif last in ("embed_tokens", "position_embedding"):
            made = randn(0.5)
        elif tensor.ndim == 1:
            made = randn(0.2 if name.endswith("bias") else 1.0)
        else:
            # Not larger: models of bfloat16 are held to these numbers too, and lose more the more a softmax is peaked.
            text = {"lm_head": 3.0, "q_proj": 1.0, "k_proj": 1.0, "up_proj": 1.5}
            sight = {"fc2": 0.8, "q_proj": 0.8, "k_proj": 0.8}
            gain = text.get(last, 2.0) if is_text else sight.get(last, 1.2)
            made = randn(gain / math.sqrt(tensor[0].numel()))
        if is_text and last in ("query_layernorm", "key_layernorm"):
            made = made * 0.9
        if family["tied"] and name == "model.language_model.norm.weight":
            made = 3.0 * made  # logits as far apart as those of a head of its own
        if last in ("lm_head", "embed_tokens"):
            # Special tokens and ids of no token are rarely chosen, as after training.
            made[256:] *= 0.3
        out[name] = made.to(torch.bfloat16)
    if family["tied"]:
        out["lm_head.weight"] = out["model.language_model.embed_tokens.weight"]
    return out


RENAMED = {
    "paddleocr_vl": [("model.visual.", "visual."), ("model.projector.", "mlp_AR."), ("model.language_model.", "model.")],
    "hunyuan_vl": [("model.vision_tower.", "vit."), ("model.language_model.", "model."), ("patch_merger.", "perceive."),
                   ("perceive.proj_conv.", "perceive.proj.0."), ("perceive.proj_out.", "perceive.proj.2."), ("mlp.fc1.", "mlp.dense_h_to_4h."),
                   ("mlp.fc2.", "mlp.dense_4h_to_h."), (".layer_norm1.", ".input_layernorm."),
                   (".layer_norm2.", ".post_attention_layernorm.")],
}


def published(family, tensors):
    """The tensors by the names of the hub, with those that no model reads."""
    import torch

    out = {}
    for name, tensor in tensors.items():
        if name == "lm_head.weight" and family["tied"]:
            continue
        for old, new in RENAMED[family["model_type"]]:
            name = name.replace(old, new)
        out[name] = tensor
    if family["model_type"] == "paddleocr_vl":
        width = family["vision"]["hidden_size"]
        ones = torch.ones(2, width, dtype=torch.bfloat16)
        out |= {"visual.vision_model.embeddings.packing_position_embedding.weight": ones, "visual.vision_model.head.probe": ones.clone()}
    return out


def processor_config(family):
    side = family["vision"]["patch_size"]
    name = {"paddleocr_vl": "PaddleOCRVLImageProcessor", "hunyuan_vl": "HunYuanVLImageProcessor"}[family["model_type"]]
    # HunyuanOCR's file names another filter than its processors use.
    filter_ = {"paddleocr_vl": 3, "hunyuan_vl": 1}[family["model_type"]]
    return {"image_processor_type": name, "min_pixels": (side * 2) ** 2 * 4, "max_pixels": (side * 2) ** 2 * 1024, "patch_size": side,
            "temporal_patch_size": 1, "merge_size": 2, "resample": filter_, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def images(family):
    """→ {name: (pixels after the reference's resize, its pixel_values, grid)}"""
    from PIL import Image
    from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil

    made = processor_config(family)
    made.pop("image_processor_type")
    processor = {"paddleocr_vl": PaddleOCRVLImageProcessorPil, "hunyuan_vl": HunYuanVLImageProcessorPil}[family["model_type"]](**made)
    side = family["vision"]["patch_size"]
    out = {}
    for seed, (name, (tall, wide)) in enumerate(SHOTS.items()):
        image = draw(round(tall * side * 2), round(wide * side * 2), seed)
        done = processor(Image.fromarray(image), return_tensors="pt")
        _, rows, columns = (int(n) for n in done["image_grid_thw"][0])
        # The bytes between resizing and normalizing: 0.5 and 0.5 lose nothing. Patches lie row by row.
        blocks = done["pixel_values"].numpy().reshape(rows, columns, 3, side, side)
        numbers = blocks.transpose(0, 3, 1, 4, 2).reshape(rows * side, columns * side, 3)
        pixels = np.round((numbers * 0.5 + 0.5) * 255.0)
        assert np.abs((pixels / 255.0 - 0.5) / 0.5 - numbers).max() < 1e-5
        pixels = pixels.astype(np.uint8)
        is_exact = image.shape == pixels.shape
        assert is_exact == (name != "resized") and (not is_exact or (pixels == image).all()), name
        out[name] = (pixels, done["pixel_values"], done["image_grid_thw"])
    return out


def marked(family, shot):
    """The ids of an image in a prompt."""
    begin, image, end = (ids_of(family)[token] for token in family["marks"])
    _, rows, columns = shot[2][0].tolist()
    return [begin, *[image] * family["image_rows"](rows, columns), end]


def prompts(family, shots, seed):
    """Prompts as (ids, names of their images)."""
    rng = np.random.default_rng(seed)

    def prompt(*parts):
        ids = []
        for part in parts:
            ids += marked(family, shots[part]) if isinstance(part, str) else rng.integers(32, 127, part).tolist()
        return ids, [part for part in parts if isinstance(part, str)]

    return [
        prompt(5, "exact", 9),
        prompt(7, "resized", 4),
        prompt("small", "exact", 11),
        prompt(6, "tall", 5, "resized", 8),
        prompt(30, "exact", 3, "small", 2, "exact", 20),
        prompt(23),
    ]


def answer(model, family, ids, names, shots, more=GREEDY_TOKENS):
    """→ (ids, margins, logits of the last prompt row, hidden states behind every layer, positions). Ties: lowest id."""
    import torch

    model.model.rope_deltas = None
    rows = torch.tensor([ids])
    kinds = (rows == ids_of(family)[family["marks"][1]]).int()
    extra, positions = {}, torch.arange(len(ids)).expand(family["axes"], 1, -1)
    if names:
        extra = {"pixel_values": torch.cat([shots[name][1] for name in names]),
                 "image_grid_thw": torch.cat([shots[name][2] for name in names]), "mm_token_type_ids": kinds}
        positions, _ = model.model.get_rope_index(rows, kinds, image_grid_thw=extra["image_grid_thw"])
    chosen, margins = [], []
    with torch.inference_mode():
        out = model(rows, use_cache=True, output_hidden_states=True, **extra)
        first, hidden, past = out.logits[0, -1], [h[0] for h in out.hidden_states], out.past_key_values
        logits = first
        while True:
            best, second = logits.topk(2).values.tolist()
            chosen.append(int(np.argmax(logits.float().numpy())))
            margins.append(best - second)
            if len(chosen) == more:
                return chosen, margins, first, hidden, positions[:, 0].tolist()
            out = model(torch.tensor([[chosen[-1]]]), past_key_values=past, use_cache=True)
            past, logits = out.past_key_values, out.logits[0, -1]


# Questions about images as clients ask them, with the images' names.
SERVED = [("What is it?", ["exact"]), ("And these?", ["small", "exact"])]


def served_prompt(family, text, names, shots):
    """What the template and the tokenizer make of a user's message: images, then a text."""
    ids = ids_of(family)
    seen = [id for name in names for id in marked(family, shots[name])]
    if family["model_type"] == "paddleocr_vl":
        return [ids["<|begin_of_sentence|>"], *b"User: ", *seen, *text.encode(), *b"\nAssistant: "]
    return [ids["<｜hy_begin▁of▁sentence｜>"], *seen, *text.encode(), ids["<｜hy_User｜>"]]


def is_plain(family, greedy):
    """Whether an answer has no part of an image."""
    ids = ids_of(family)
    return not set(greedy) & {ids[token] for token in family["marks"]}


def cases(model, family, shots, seed):
    """What the golden file has of prompts; None if a choice is too close or an answer has a part of an image."""
    out = []
    for ids, names in prompts(family, shots, seed):
        greedy, margins, logits, hidden, positions = answer(model, family, ids, names, shots)
        if not is_decided(greedy, margins) or not is_plain(family, greedy):
            return None
        rows, layers = tap_rows(family, ids), range(family["text"]["num_hidden_layers"] - 1)
        out.append({"prompt": ids, "images": names, "positions": positions, "logits": row(logits),
                    "taps": [[row(hidden[layer + 1][at]) for layer in layers] for at in rows], "tap_rows": rows, "greedy": greedy,
                    "margins": [round(margin, 5) for margin in margins]})
    return out


def tap_rows(family, ids):
    """The last row, and of an image one in the middle."""
    inside = [at for at, id in enumerate(ids) if id == ids_of(family)[family["marks"][1]]]
    return [*inside[len(inside) // 2:len(inside) // 2 + 1], len(ids) - 1]


def served(model, family, shots):
    """Answers to SERVED; None if a choice is too close, would end the answer, or is an id of no token, which is never served."""
    ids, out = ids_of(family), []
    for text, names in SERVED:
        prompt = served_prompt(family, text, names, shots)
        greedy, margins, *_ = answer(model, family, prompt, names, shots)
        ends = set(greedy) & {ids[token] for token in family["stops"]}
        if not is_decided(greedy, margins) or ends or not is_plain(family, greedy) or max(greedy) > max(ids.values()):
            return None
        out.append({"text": text, "images": names, "prompt": prompt, "greedy": greedy})
    return out


def write(folder, family, tensors):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    ids = ids_of(family)
    (folder / "config.json").write_text(json.dumps(config(family), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[token] for token in family["stops"]]}) + "\n")
    save_file(published(family, tensors), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    (folder / "preprocessor_config.json").write_text(json.dumps(processor_config(family), indent=1) + "\n")
    write_tokenizer(folder, family)


def write_tokenizer(folder, family):
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    characters = {chr(code): at for at, code in enumerate(byte_characters())}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=characters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in family["tokens"]])
    assert all(tokenizer.token_to_id(token) == id for token, id in ids_of(family).items())
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": family["tokens"][0], "eos_token": family["stops"][0],
        "model_max_length": family["text"]["max_position_embeddings"], "chat_template": family["template"]}, indent=1) + "\n")


def lost_in_16_bits(half, family, shots, found):
    """The largest share of a case's largest logit or hidden number by which the reference itself is off if it computes in bfloat16. Models
    that compute so are held to a bound of 3e-2."""
    import torch

    worst = 0.0
    for case in found:
        *_, logits, hidden, _ = answer(half, family, case["prompt"], case["images"], shots, more=1)
        pairs = [(case["logits"], logits.float().tolist())]
        for at, layers in zip(case["tap_rows"], case["taps"]):
            taps = [hidden[layer + 1][at].float() for layer in range(len(layers))]
            pairs.append((sum(layers, []), torch.cat(taps).tolist()))
        for expected, off in pairs:
            worst = max(worst, np.abs(np.subtract(expected, off)).max() / np.abs(expected).max())
    return worst


def features_of(model, pixels, values, grid):
    out = model.model.get_image_features(values, grid, return_dict=True)
    return {"rows": int(grid[0, 1]), "columns": int(grid[0, 2]), "pixels": pixels.tobytes().hex(), "merged": row(out.pooler_output[0]),
            "deepstack": []}


def make_ocr_vision(dump, provenance, versions):
    import PIL
    import torch

    torch.set_num_threads(1)
    for name, family in FAMILIES.items():
        model, half, shots = reference(family), reference(family).to(torch.bfloat16), images(family)
        for seed in range(10_000):
            stored = weights(model, family, seed)
            model.load_state_dict({key: tensor.float() for key, tensor in stored.items()})
            answers = served(model, family, shots)
            found = cases(model, family, shots, seed) if answers is not None else None
            if found is not None:
                half.load_state_dict(stored)
                lost = lost_in_16_bits(half, family, shots, found)
                print(f"{name}, seed {seed}: bfloat16 loses {lost:.3f}")
                if lost < MOST_LOST:
                    break
        write(HERE / name, family, stored)
        with torch.inference_mode():
            features = [features_of(model, *shots[shot]) | {"name": shot} for shot in SHOTS]
        axes = {3: "time, height, width", 4: "index, width, height, number of the image"}[family["axes"]]
        dump(HERE / f"{name}.json", {
            "provenance": provenance("ocr_vision", **versions, pillow=PIL.__version__),
            "checkpoint": f"models/tests/golden/{name}",
            "arithmetic": "weights stored as bfloat16, widened to float32; float32 arithmetic; eager attention; processor: CPU",
            "seed": seed,
            "meaning": {
                "images": "rows, columns in patches; pixels: bytes after the processor's resize, hex; merged: the rows that take the "
                            "placeholders' places",
                "cases": f"images: names, in the order of the prompt; positions: {axes}; logits: of the last prompt row; "
                         "taps: transformers' hidden_states[layer + 1] of tap_layers at tap_rows; greedy: ids chosen after the prompt, "
                         "stop tokens ignored, ties: lowest id; margins: best minus second logit of each choice",
                "served": "ids of a user's message of images and a text in the folder's template, and those chosen after them",
            },
            "tap_layers": list(range(family["text"]["num_hidden_layers"] - 1)),
            "images": features,
            "served": answers,
            "cases": found,
        })
