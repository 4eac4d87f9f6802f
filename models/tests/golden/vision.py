"""Tiny Qwen3-VL checkpoints with random weights, and what transformers makes of images and prompts with them.

Called by make.py (`python models/tests/golden/make.py vision`), which see. Besides what that names it needs pillow. Images are
drawn here by numbers, resized by the reference's own processor (Qwen2VLImageProcessorPil), and kept as the bytes that come out.

`qwen3-vl-tiny` is a whole model folder: tokenizer (bytes and special tokens, no merges), chat template, preprocessor_config.json.
Tests of other crates use it too.
"""

import json
import math
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent

# Bytes 0..255 are ids 0..255.
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
IDS = {token: 256 + i for i, token in enumerate(SPECIAL)}
IMAGE, BEGIN, END = IDS["<|image_pad|>"], IDS["<|vision_start|>"], IDS["<|vision_end|>"]
STOPS = [IDS["<|endoftext|>"], IDS["<|im_end|>"]]
VOCAB = 272  # a few rows more than tokens, as published checkpoints have

MODELS = {
    # transformers' layout and new RoPE key, bfloat16, tied head.
    "qwen3-vl-tiny": {
        "text": {"hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                 "intermediate_size": 64, "max_position_embeddings": 2048},
        "rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2],
                                     "mrope_interleaved": True}},
        "vision": {"depth": 3, "hidden_size": 24, "num_heads": 2, "intermediate_size": 40, "patch_size": 4,
                   "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]},
        "tied": True,
        "dtype": "bfloat16",
        "layout": "transformers",
        "whole": True,
    },
    # mlx-vlm's layout, old RoPE keys, explicit nulls, float32, own head, three query heads a KV head, uneven heads of the tower.
    "qwen3-vl-tiny-mlx": {
        "text": {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12,
                 "intermediate_size": 32, "max_position_embeddings": 512},
        "rope": {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "default", "mrope_section": [2, 2, 2],
                                                         "mrope_interleaved": True}},
        "vision": {"depth": 4, "hidden_size": 16, "num_heads": 4, "intermediate_size": 20, "patch_size": 2,
                   "num_position_embeddings": 25, "deepstack_visual_indexes": [1, 2, 3]},
        "tied": False,
        "dtype": "float32",
        "layout": "mlx",
        "whole": False,
    },
}
# (height, width) drawn, in patches' multiples where exact: name → pixels / (patch · merge)
SHOTS = {"exact": (3, 4), "resized": (2.7, 4.4), "tall": (4, 1), "small": (2, 2)}
GREEDY_TOKENS = 32
LEAST_MARGIN = 0.01
LEAST_DISTINCT = 12


def config(spec):
    text = {
        "model_type": "qwen3_vl_text", "vocab_size": VOCAB, **spec["text"], **spec["rope"], "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": STOPS[1], "pad_token_id": None,
        "dtype": spec["dtype"],
    }
    vision = {
        "model_type": "qwen3_vl_vision", "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "temporal_patch_size": 2,
        "spatial_merge_size": 2, "out_hidden_size": spec["text"]["hidden_size"], **spec["vision"],
    }
    if spec["layout"] == "mlx":
        # Null means absent; the wrapper's word about the head counts, not the text model's.
        text |= {"num_experts": None, "tie_word_embeddings": True}
        vision |= {"rope_parameters": None}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": text, "vision_config": vision,
        "tie_word_embeddings": spec["tied"], "image_token_id": IMAGE, "video_token_id": IDS["<|video_pad|>"],
        "vision_start_token_id": BEGIN, "vision_end_token_id": END, "dtype": spec["dtype"],
    }


def weights(model, seed):
    """Large enough that every part matters: norms away from 1, attention away from uniform, answers that do not repeat."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, tensor in model.state_dict().items():
        def randn(gain, shape=tensor.shape):
            return torch.randn(shape, generator=generator) * gain

        last = name.split(".")[-2]
        if tensor.ndim == 1 and name.endswith("weight"):
            out[name] = (1.5 if last == "q_norm" else 1.0) * (1.0 + randn(0.3))
        elif tensor.ndim == 1:
            out[name] = randn(0.2)
        elif last in ("embed_tokens", "pos_embed"):
            out[name] = randn(0.5)
        else:
            text = {"lm_head": 3.0, "q_proj": 1.0, "k_proj": 1.0, "up_proj": 1.5}
            sight = {"linear_fc2": 1.0, "qkv": 1.5}
            gain = text.get(last, 2.0) if "visual" not in name else sight.get(last, 1.5)
            out[name] = randn(gain / math.sqrt(tensor[0].numel()))
    return out


def to_mlx(tensors):
    """What mlx-vlm's conversion makes of names and of the convolution's axes."""
    out = {}
    for name, tensor in tensors.items():
        for old, new in (("model.visual.", "vision_tower."), ("model.language_model.", "language_model.model."),
                         ("lm_head.", "language_model.lm_head.")):
            if name.startswith(old):
                name = new + name.removeprefix(old)
                break
        if name.endswith("patch_embed.proj.weight"):
            tensor = tensor.permute(0, 2, 3, 4, 1).contiguous()
        out[name] = tensor
    return out


def write_model(folder, spec, tensors):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(spec), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOPS}) + "\n")
    tensors = {name: tensor for name, tensor in tensors.items() if not (spec["tied"] and name == "lm_head.weight")}
    if spec["layout"] == "mlx":
        tensors = to_mlx(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    if spec["whole"]:
        write_processor(folder, spec)


# As the published template: an image stands between its marks, text parts follow one another.
TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' or 'image' in part or 'image_url' in part %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def processor_config(spec):
    side = spec["vision"]["patch_size"]
    return {
        "size": {"shortest_edge": (side * 2) ** 2 * 4, "longest_edge": (side * 2) ** 2 * 1024}, "patch_size": side, "temporal_patch_size": 2,
        "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "image_processor_type": "Qwen2VLImageProcessorFast",
    }


def write_processor(folder, spec):
    write_tokenizer(folder, IDS, {
        "tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None,
        "model_max_length": spec["text"]["max_position_embeddings"], "chat_template": TEMPLATE})
    (folder / "preprocessor_config.json").write_text(json.dumps(processor_config(spec), indent=1) + "\n")


def write_tokenizer(folder, ids, settings, plain=()):
    """A tokenizer of bytes and of the tokens of `ids`, which are special but for `plain`."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    characters = {chr(code): i for i, code in enumerate(byte_characters())}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=characters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([tokenizers.AddedToken(token, special=token not in plain, normalized=False) for token in ids])
    assert all(tokenizer.token_to_id(token) == id for token, id in ids.items())
    last = max(ids, key=ids.get)
    assert tokenizer.encode(f"aé{last}").ids == [97, 0xC3, 0xA9, ids[last]]
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def byte_characters():
    """The character of each byte in byte-level BPE (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [byte if byte in plain else next(others) for byte in range(256)]


def draw(height, width, seed):
    """Waves of three colours and a block: no two patches alike."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    rng = np.random.default_rng(seed)
    channels = []
    for _ in range(3):
        a, b, c = rng.uniform(0.15, 0.9, 2).tolist() + [rng.uniform(0, 6)]
        channels.append(np.round(127.5 + 127.5 * np.sin(a * y + b * x + c)))
    image = np.stack(channels, -1).astype(np.uint8)
    image[: height // 3, : width // 3] = rng.integers(0, 256, 3)
    return image


def images(spec):
    """→ {name: (pixels after the reference's resize, its pixel_values, grid)}"""
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    made = processor_config(spec)
    made.pop("image_processor_type")
    processor = Qwen2VLImageProcessorPil(**made)
    unit = spec["vision"]["patch_size"] * 2
    out = {}
    for seed, (name, (tall, wide)) in enumerate(SHOTS.items()):
        image = draw(round(tall * unit), round(wide * unit), seed)
        done = processor(Image.fromarray(image), return_tensors="pt")
        grid = [int(n) for n in done["image_grid_thw"][0]]
        height, width = grid[1] * spec["vision"]["patch_size"], grid[2] * spec["vision"]["patch_size"]
        assert (image.shape[:2] == (height, width)) == (name != "resized"), name
        # The bytes between resizing and normalizing: 0.5 and 0.5 lose nothing.
        pixels = unpatch(done["pixel_values"].numpy(), grid, spec["vision"]["patch_size"])
        assert name == "resized" or (pixels == image).all(), name
        out[name] = (pixels, done["pixel_values"], done["image_grid_thw"])
    return out


def unpatch(values, grid, side, mean=0.5, std=0.5):
    """The bytes between resizing and normalizing. `mean` and `std` are one number, or one for each channel."""
    _, rows, columns = grid
    blocks = values.reshape(rows // 2, columns // 2, 2, 2, 3, 2, side, side)[:, :, :, :, :, 0]
    image = blocks.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * side, columns * side, 3)
    bytes_ = np.round((image * std + mean) * 255.0)
    assert np.abs((bytes_ / 255.0 - mean) / std - image).max() < 1e-5
    return bytes_.astype(np.uint8)


def prompts(shots, seed):
    """Prompts as (ids, names of their images)."""
    rng = np.random.default_rng(seed)

    def text(n):
        return rng.integers(32, 127, n).tolist()

    def image(name):
        _, rows, columns = shots[name][2][0].tolist()
        return [BEGIN, *[IMAGE] * (rows * columns // 4), END]

    def prompt(*parts):
        ids = [id for part in parts for id in (image(part) if isinstance(part, str) else text(part))]
        return ids, [part for part in parts if isinstance(part, str)]

    return [
        prompt(5, "exact", 9),
        prompt(7, "resized", 4),
        prompt("small", "exact", 11),
        prompt(6, "tall", 5, "resized", 8),
        prompt(40, "exact", 3, "small", 2, "exact", 30),
        prompt(23),
    ]


def answer(model, ids, names, shots):
    """→ (ids, margins, logits of the last prompt row, hidden states behind every layer, positions). Ties: lowest id."""
    import torch

    model.model.rope_deltas = None
    rows = torch.tensor([ids])
    kinds = (rows == IMAGE).int()
    extra = {}
    if names:
        extra = {"pixel_values": torch.cat([shots[name][1] for name in names]), "image_grid_thw": torch.cat([shots[name][2] for name in names]),
                 "mm_token_type_ids": kinds}
        positions, _ = model.model.get_rope_index(rows, kinds, extra["image_grid_thw"])
    else:
        positions = torch.arange(len(ids)).expand(3, 1, -1)
    chosen, margins = [], []
    with torch.inference_mode():
        out = model(rows, use_cache=True, output_hidden_states=True, **extra)
        first, hidden, past = out.logits[0, -1], [h[0] for h in out.hidden_states], out.past_key_values
        logits = first
        while True:
            best, second = logits.topk(2).values.tolist()
            chosen.append(int(np.argmax(logits.numpy())))
            margins.append(best - second)
            if len(chosen) == GREEDY_TOKENS:
                return chosen, margins, first, hidden, positions[:, 0].tolist()
            out = model(torch.tensor([[chosen[-1]]]), past_key_values=past, use_cache=True)
            past, logits = out.past_key_values, out.logits[0, -1]


MOST_LOST = 2.4e-2  # see lost_in_16_bits


def lost_in_16_bits(half, model, stored, cases, shots):
    """The largest share of the largest number by which the reference itself is off if it computes in bfloat16: of the logits and hidden
    states of a case, and of an image's features. Models that compute so are held to a bound of 3e-2. `half`: the model in bfloat16, without
    its weights."""
    import torch

    half.load_state_dict(stored)
    worst = 0.0

    def compare(expected, found):
        nonlocal worst
        expected, found = np.asarray(expected), np.asarray(found)
        worst = max(worst, float(np.abs(expected - found).max() / np.abs(expected).max()))

    with torch.inference_mode():
        for case in cases:
            half.model.rope_deltas = None
            rows, names, extra = torch.tensor([case["prompt"]]), case["images"], {}
            if names:
                extra = {"pixel_values": torch.cat([shots[name][1] for name in names]).to(torch.bfloat16),
                         "image_grid_thw": torch.cat([shots[name][2] for name in names]), "mm_token_type_ids": (rows == IMAGE).int()}
            out = half(rows, output_hidden_states=True, **extra)
            compare(case["logits"], out.logits[0, -1].float())
            for at, layers in zip(case["tap_rows"], case["taps"]):
                for layer, numbers in enumerate(layers):
                    compare(numbers, out.hidden_states[layer + 1][0, at].float())
        for pixels, values, grid in shots.values():
            features = [part.model.get_image_features(values.to(kind), grid, return_dict=True).pooler_output[0].float()
                        for part, kind in ((model, torch.float32), (half, torch.bfloat16))]
            compare(*features)
    return worst


def row(tensor):
    return [round(float(x), 6) for x in tensor.reshape(-1)]


def make_vision(dump, provenance, versions):
    import PIL
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    for name, spec in MODELS.items():
        # All but the last: of that transformers records what is behind the final norm.
        taps = list(range(spec["text"]["num_hidden_layers"] - 1))
        # The text model's own word about the head is left out for transformers, which reads the wrapper's as we do.
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config(spec))).eval().float()
        model.set_attn_implementation("eager")
        assert model.config.text_config.rope_parameters["mrope_section"] == spec["rope"].get(
            "rope_parameters", spec["rope"].get("rope_scaling"))["mrope_section"]
        shots = images(spec)
        for seed in range(10_000):
            dtype = getattr(torch, spec["dtype"])
            stored = {key: tensor.to(dtype) for key, tensor in weights(model, seed).items()}
            if spec["tied"]:
                stored["lm_head.weight"] = stored["model.language_model.embed_tokens.weight"]
            model.load_state_dict({key: tensor.float() for key, tensor in stored.items()})
            cases = []
            for ids, names in prompts(shots, seed):
                greedy, margins, logits, hidden, positions = answer(model, ids, names, shots)
                cases.append({"prompt": ids, "images": names, "positions": positions, "logits": row(logits),
                              "taps": [[row(hidden[layer + 1][at]) for layer in taps] for at in tap_rows(ids)], "tap_rows": tap_rows(ids),
                              "greedy": greedy, "margins": [round(m, 5) for m in margins]})
            if all(min(c["margins"]) >= LEAST_MARGIN and len(set(c["greedy"])) >= LEAST_DISTINCT and IMAGE not in c["greedy"]
                   for c in cases):
                break
        write_model(HERE / name, spec, stored)
        with torch.inference_mode():
            features = [features_of(model, *shots[shot]) | {"name": shot} for shot in SHOTS]
        dump(HERE / f"{name}.json", {
            "provenance": provenance("vision", **versions, pillow=PIL.__version__),
            "checkpoint": f"models/tests/golden/{name}",
            "arithmetic": f"weights stored as {spec['dtype']}, widened to float32; float32 arithmetic; eager attention; processor: CPU",
            "seed": seed,
            "meaning": {
                "images": "rows, columns in patches; pixels: bytes after the processor's resize, hex; merged: the rows that take the "
                            "placeholders' places; deepstack: the rows added behind layer 0, 1, …",
                "cases": "images: names, in the order of the prompt; positions: time, height, width; logits: of the last prompt row; "
                         "taps: transformers' hidden_states[layer + 1] of tap_layers at tap_rows; greedy: ids chosen after the prompt, "
                         "stop tokens ignored, ties: lowest id; margins: best minus second logit of each choice",
            },
            "tap_layers": taps,
            "images": features,
            "cases": cases,
        })


def tap_rows(ids):
    """The last row, and of an image one in the middle."""
    inside = [at for at, id in enumerate(ids) if id == IMAGE]
    return [*inside[len(inside) // 2:len(inside) // 2 + 1], len(ids) - 1]


def features_of(model, pixels, values, grid):
    out = model.model.get_image_features(values, grid, return_dict=True)
    return {"rows": int(grid[0, 1]), "columns": int(grid[0, 2]), "pixels": pixels.tobytes().hex(),
            "merged": row(out.pooler_output[0]), "deepstack": [row(level[0]) for level in out.deepstack_features]}
