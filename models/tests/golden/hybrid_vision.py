"""Tiny Qwen3.5 checkpoints with a vision tower, dense and with experts, and what transformers makes of images and prompts with them.

Called by make.py (`python models/tests/golden/make.py hybrid_vision`), which see. Besides what that names it needs pillow. Text models
and their weights are made as in hybrid.py; towers, images, prompts and the files of a whole model folder as in vision.py.

`qwen3_5-vl-tiny` is a whole model folder: tests of other crates use it too.
"""

import json

import hybrid
import vision
from make import HERE
from vision import IDS, IMAGE, SHOTS, STOPS, VOCAB

SIZES = {**hybrid.TEXT, "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "max_position_embeddings": 2048,
         "eos_token_id": STOPS[1], "dtype": "bfloat16"}


def rope(share, section):
    return {"rope_parameters": {**hybrid.ROPE, "rope_theta": 10000.0, "partial_rotary_factor": share, "mrope_section": section}}


MODELS = {
    # As Qwen3.5-4B: tied. Eight frequencies, unevenly on the three axes; three value heads share a key head.
    "qwen3_5-vl-tiny": {
        "model_type": "qwen3_5", "tied": True, "whole": True,
        "text": {**SIZES, **rope(0.5, [3, 3, 2]), "intermediate_size": 48, "linear_num_value_heads": 6,
                 "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        "vision": {"depth": 3, "hidden_size": 24, "num_heads": 2, "intermediate_size": 40, "patch_size": 4,
                   "num_position_embeddings": 36, "deepstack_visual_indexes": []},
    },
    # As Qwen3.6-35B-A3B: an own head, experts. Lists of blocks are left out; patches of as many pixels as there are frames.
    "qwen3_5_moe-vl-tiny": {
        "model_type": "qwen3_5_moe", "tied": False, "whole": False,
        "text": {**SIZES, **rope(0.25, [2, 1, 1]), **hybrid.MOE, "full_attention_interval": 3},
        "vision": {"depth": 2, "hidden_size": 16, "num_heads": 4, "intermediate_size": 20, "patch_size": 2,
                   "num_position_embeddings": 25},
    },
}


def config(spec):
    name = {"qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration"}[spec["model_type"]]
    tower = {"model_type": spec["model_type"], "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "temporal_patch_size": 2,
             "spatial_merge_size": 2, "out_hidden_size": spec["text"]["hidden_size"], **spec["vision"]}
    return {"architectures": [name], "model_type": spec["model_type"], "tie_word_embeddings": spec["tied"],
            "text_config": {"model_type": f"{spec['model_type']}_text", **spec["text"]}, "vision_config": tower,
            "image_token_id": IMAGE, "video_token_id": IDS["<|video_pad|>"], "vision_start_token_id": vision.BEGIN,
            "vision_end_token_id": vision.END}


def reference(spec):
    """The model without its weights."""
    import torch
    from transformers import (Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3_5MoeConfig,
                              Qwen3_5MoeForConditionalGeneration)

    of_config, of_model = {"qwen3_5": (Qwen3_5Config, Qwen3_5ForConditionalGeneration),
                           "qwen3_5_moe": (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration)}[spec["model_type"]]
    keys = {key: value for key, value in config(spec).items() if key not in ("architectures", "model_type")}
    keys["text_config"] = {key: value for key, value in keys["text_config"].items() if key != "dtype"}
    made = of_config(**keys)
    assert made.text_config.layer_types == hybrid.kinds(spec["text"]), made.text_config.layer_types
    assert made.text_config.rope_parameters["mrope_section"] == spec["text"]["rope_parameters"]["mrope_section"]
    model = of_model(made).eval().to(torch.float32)
    model.set_attn_implementation("eager")
    return model


def weights(model, spec, seed):
    """In the layout of transformers, as stored."""
    import torch

    tower = {name: tensor.to(torch.bfloat16) for name, tensor in vision.weights(model, seed).items() if "visual" in name}
    return {**hybrid.random_weights(spec["text"], spec["tied"], seed), **tower}


def load(model, stored):
    """As stored, widened to float32."""
    missing, unexpected = model.load_state_dict({name: tensor.float() for name, tensor in stored.items()}, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()


def write(folder, spec, stored):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(spec), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOPS}) + "\n")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone
    if spec["whole"]:
        vision.write_processor(folder, spec)


def features_of(model, pixels, values, grid):
    out = model.model.get_image_features(values, grid, return_dict=True)
    return {"rows": int(grid[0, 1]), "columns": int(grid[0, 2]), "pixels": pixels.tobytes().hex(),
            "merged": vision.row(out.pooler_output[0]), "deepstack": []}


# Questions about images as clients ask them, with the images' names.
SERVED = [("What is it?", ["exact"]), ("And these?", ["small", "exact"])]


def served_prompt(text, names, shots):
    """What vision.TEMPLATE and the tokenizer make of a user's message: images, then a text."""
    marks = []
    for name in names:
        _, rows, columns = shots[name][2][0].tolist()
        marks += [vision.BEGIN, *[IMAGE] * (rows * columns // 4), vision.END]
    begin, end = IDS["<|im_start|>"], IDS["<|im_end|>"]
    return [begin, *b"user\n", *marks, *text.encode(), end, *b"\n", begin, *b"assistant\n"]


def is_decided(greedy, margins):
    return min(margins) >= vision.LEAST_MARGIN and len(set(greedy)) >= vision.LEAST_DISTINCT and IMAGE not in greedy


def served(model, shots):
    """Answers to SERVED; None if a choice is too close, would end the answer, or is an id of no token, which is never served."""
    out = []
    for text, names in SERVED:
        ids = served_prompt(text, names, shots)
        greedy, margins, *_ = vision.answer(model, ids, names, shots)
        if not is_decided(greedy, margins) or set(greedy) & set(STOPS) or max(greedy) > max(IDS.values()):
            return None
        out.append({"text": text, "images": names, "prompt": ids, "greedy": greedy})
    return out


def make_hybrid_vision(dump, provenance, versions):
    import PIL
    import torch

    torch.set_num_threads(1)
    for name, spec in MODELS.items():
        # All but the last: of that transformers records what is behind the final norm.
        taps = list(range(spec["text"]["num_hidden_layers"] - 1))
        model, shots = reference(spec), vision.images(spec)
        for seed in range(10_000):
            stored = weights(model, spec, seed)
            load(model, stored)
            cases = []
            for ids, names in vision.prompts(shots, seed):
                greedy, margins, logits, hidden, positions = vision.answer(model, ids, names, shots)
                rows = vision.tap_rows(ids)
                cases.append({"prompt": ids, "images": names, "positions": positions, "logits": vision.row(logits),
                              "taps": [[vision.row(hidden[layer + 1][at]) for layer in taps] for at in rows], "tap_rows": rows,
                              "greedy": greedy, "margins": [round(m, 5) for m in margins]})
                if not is_decided(greedy, margins):
                    break
            answers = served(model, shots) if len(cases) == len(vision.prompts(shots, seed)) and is_decided(greedy, margins) else None
            if answers is not None:
                break
        write(HERE / name, spec, stored)
        with torch.inference_mode():
            features = [features_of(model, *shots[shot]) | {"name": shot} for shot in SHOTS]
        dump(HERE / f"{name}.json", {
            "provenance": provenance("hybrid_vision", **versions, pillow=PIL.__version__),
            "checkpoint": f"models/tests/golden/{name}",
            "arithmetic": "weights stored as bfloat16, widened to float32; float32 arithmetic; eager attention; processor: CPU",
            "seed": seed,
            "meaning": {
                "images": "rows, columns in patches; pixels: bytes after the processor's resize, hex; merged: the rows that take the "
                            "placeholders' places",
                "cases": "images: names, in the order of the prompt; positions: time, height, width; logits: of the last prompt row; "
                         "taps: transformers' hidden_states[layer + 1] of tap_layers at tap_rows; greedy: ids chosen after the prompt, "
                         "stop tokens ignored, ties: lowest id; margins: best minus second logit of each choice",
                "served": "ids of a user's message of images and a text in the template of qwen3_5-vl-tiny, and those chosen after them",
            },
            "tap_layers": taps,
            "images": features,
            "served": answers,
            "cases": cases,
        })
