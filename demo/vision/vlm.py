"""The demo's vision model: transformers' Qwen3-VL with small sizes, its tokenizer files, and a forward for training.

The checkpoint is the reference's own (`save_pretrained`). The forward here computes the same from the same parameters, for many
pictures of one size at once and with several questions behind one picture; `measure.py --check` holds it against the reference.
"""

import json

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

PATCH, MERGE = 16, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
PAD, IM_START, STOP, MASK, VISION_START, VISION_END, IMAGE, VIDEO = range(8)
VOCABULARY = 640
# Pictures become 9 to 20 rows of the prompt, which is what was trained.
MIN_PIXELS, MAX_PIXELS = 9 * 32 * 32, 20 * 32 * 32

TEXT = {"vocab_size": VOCABULARY, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [12, 10, 10], "mrope_interleaved": True},
        "attention_bias": False, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": STOP, "pad_token_id": None}
VISION = {"depth": 4, "hidden_size": 128, "intermediate_size": 384, "num_heads": 4, "patch_size": PATCH, "temporal_patch_size": 2,
          "spatial_merge_size": MERGE, "num_position_embeddings": 100, "out_hidden_size": 192, "deepstack_visual_indexes": [1, 2]}

TEMPLATE = """{%- macro parts(content) -%}
{%- if content is string -%}{{- content -}}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' or part.type == 'image_url' or 'image' in part or 'image_url' in part -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'text' or 'text' in part -%}{{- part.text -}}
{%- else -%}{{- raise_exception('expected text or image parts, found ' ~ part.type) -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ parts(m.content) ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def new_model():
    config = Qwen3VLConfig(text_config=dict(TEXT), vision_config=dict(VISION), image_token_id=IMAGE, video_token_id=VIDEO,
                           vision_start_token_id=VISION_START, vision_end_token_id=VISION_END, tie_word_embeddings=True)
    model = Qwen3VLForConditionalGeneration(config)
    for name, p in model.named_parameters():
        if p.ndim < 2:
            continue
        # What a layer adds to the stream starts at nothing, so that depth costs no stability at the first steps.
        if name.endswith(("o_proj.weight", "down_proj.weight", "attn.proj.weight")) or "blocks" in name and name.endswith("linear_fc2.weight"):
            torch.nn.init.zeros_(p)
        else:
            torch.nn.init.normal_(p, std=0.02 if "embed_tokens" in name or "pos_embed" in name else p[0].numel() ** -0.5)
    return model


def load(folder):
    """A checkpoint in float32, whatever it is stored in."""
    return Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval().requires_grad_(False)


# Files ---------------------------------------------------------------------------------------------------------------

def train_tokenizer(texts, path):
    """Byte-level BPE with Qwen's split. Few merges: every word of the demo's world becomes one token, the rest bytes."""
    tokenizer = Tokenizer(models.BPE())
    split = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(s, special=True, normalized=False) for s in SPECIAL]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    assert tokenizer.get_vocab_size() <= VOCABULARY
    tokenizer.save(str(path))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_side_files(folder):
    """All files of a checkpoint but weights, config.json and tokenizer.json."""
    added = {str(i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
             for i, s in enumerate(SPECIAL)}
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added, "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "mask_token": "<|mask|>", "model_max_length": TEXT["max_position_embeddings"],
        "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_json(folder / "generation_config.json", {"eos_token_id": [STOP], "pad_token_id": PAD, "do_sample": False})
    write_json(folder / "preprocessor_config.json", {
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen3VLProcessor", "do_convert_rgb": True, "do_resize": True,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}, "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255,
        "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": PATCH, "temporal_patch_size": 2, "merge_size": MERGE})


def save(model, folder, dtype=torch.float32):
    folder.mkdir(parents=True, exist_ok=True)
    stored = Qwen3VLForConditionalGeneration(model.config).to(dtype)
    stored.load_state_dict(model.state_dict())
    stored.save_pretrained(folder)
    # The parts of a loaded config name the type it was loaded in, which is not the one stored.
    config = json.loads((folder / "config.json").read_text())
    for part in ("text_config", "vision_config"):
        config[part].pop("dtype", None)
    write_json(folder / "config.json", config)
    write_side_files(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors makes it readable by its owner alone


# Pictures in ---------------------------------------------------------------------------------------------------------

def patches(pixels):
    """uint8 [B, height, width, 3] → [B, patches, 3 · 16 · 16] in the tower's order: four of one merged row after another."""
    b, height, width, _ = pixels.shape
    side = PATCH * MERGE
    x = torch.as_tensor(pixels).view(b, height // side, MERGE, PATCH, width // side, MERGE, PATCH, 3)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(b, -1, 3 * PATCH * PATCH)
    return x.float() / 127.5 - 1.0


def pixel_values(pixels):
    """What the reference's processor gives for one picture [height, width, 3] that needs no resizing → (values, image_grid_thw)."""
    x = patches(np.asarray(pixels)[None])[0].view(-1, 3, 1, PATCH * PATCH).repeat(1, 1, 2, 1)  # a still is two equal frames
    return x.reshape(len(x), -1), torch.tensor([[1, pixels.shape[0] // PATCH, pixels.shape[1] // PATCH]])


class Grid:
    """What depends on a picture's size alone; one a size."""

    def __init__(self, visual, rows, columns):
        from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids
        grid = torch.tensor([[1, rows * MERGE, columns * MERGE]])
        self.taps, self.weights = get_vision_interpolation_indices_and_weights(
            grid, num_grid_per_side=visual.num_grid_per_side, mode="bilinear", align_corners=True, spatial_merge_size=MERGE, kwargs={})
        places = get_vision_position_ids(grid, MERGE, kwargs={})
        self.rope = [t[None, None] for t in visual.rotary_pos_emb(torch.zeros(1), places)]  # cos, sin [1, 1, patches, head size]


def rotate(x, rope):
    cos, sin = rope
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def tower(visual, pixels, grid):
    """Pictures of one size → [the merged rows, then those for each deepstack layer], each [B, rows, hidden]."""
    x = patches(pixels)
    weight = visual.patch_embed.proj.weight.sum(2).flatten(1)  # both frames are the same
    x = F.linear(x, weight, visual.patch_embed.proj.bias)
    x = x + (visual.pos_embed(grid.taps) * grid.weights[:, :, None]).sum(1)
    deep, b = [], len(x)
    for i, block in enumerate(visual.blocks):
        n = block.norm1(x)
        q, k, v = block.attn.qkv(n).view(b, n.shape[1], 3, block.attn.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(rotate(q, grid.rope).to(v.dtype), rotate(k, grid.rope).to(v.dtype), v)
        x = x + block.attn.proj(mixed.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
        if i in visual.deepstack_visual_indexes:
            deep.append(visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(i)](x).view(b, -1, visual.config.out_hidden_size))
    return [visual.merger(x).view(b, -1, visual.config.out_hidden_size), *deep]


# Text ----------------------------------------------------------------------------------------------------------------

def norm(x, module):
    return F.rms_norm(x.float(), (x.shape[-1],), module.weight, module.variance_epsilon)


def text(language, ids, positions, mask, spots=None, features=None, taps=()):
    """ids [B, T], positions [3, B, T], mask [B, 1, T, T] (True: may look) → (rows after the final norm, taps or None).

    `spots`: indices into the B · T rows that hold pictures, `features`: what `tower` gave for them, each [spots, hidden].

    A tap is the output of a layer with the deepstack rows added: what the next layer takes in, and what the reference records
    as hidden_states[i + 1] (it adds outside the layer, and records what enters the next one); checked in measure.py.
    """
    x = language.embed_tokens(ids)
    shape = x.shape

    def at_spots(x, rows, add):
        flat = x.float().flatten(0, 1)
        return (flat.index_add(0, spots, rows.float()) if add else flat.index_copy(0, spots, rows.float())).view(shape)

    if spots is not None:
        x = at_spots(x, features[0], add=False)
    rope = [t[:, None] for t in language.rotary_emb(x, positions)]
    tapped = {}
    for i, layer in enumerate(language.layers):
        a, n = layer.self_attn, norm(x, layer.input_layernorm)
        q, k, v = (p(n).view(*shape[:2], -1, a.head_dim) for p in (a.q_proj, a.k_proj, a.v_proj))
        q, k = rotate(norm(q, a.q_norm).transpose(1, 2), rope).to(v.dtype), rotate(norm(k, a.k_norm).transpose(1, 2), rope).to(v.dtype)
        k, v = (t.repeat_interleave(a.num_key_value_groups, 1) for t in (k, v.transpose(1, 2)))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + a.o_proj(mixed.transpose(1, 2).flatten(2))
        m, n = layer.mlp, norm(x, layer.post_attention_layernorm)
        x = x + m.down_proj(F.silu(m.gate_proj(n)) * m.up_proj(n))
        if spots is not None and i + 1 < len(features):
            x = at_spots(x, features[i + 1], add=True)
        if i in taps:
            tapped[i] = x
    return norm(x, language.norm), torch.cat([tapped[i] for i in taps], -1) if taps else None


def logits(language, rows):
    return F.linear(rows, language.embed_tokens.weight).float()
