"""The demo pair in torch: a Qwen3 target and its DFlash drafter, in the published layouts. Layer → Target → Drafter → decoding.

B batch · T rows · S context rows · H heads · D head_dim. Parameter names are the checkpoint's tensor names. This is the trainer's
and the measuring scripts' model; the product's own is in models/, and neither imports the other.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn


class Norm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, always in float32."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps)


def rope_table(config, positions):
    """positions [..., T] → cos, sin [..., 1, T, D/2], float32."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[..., None].float() * frequencies
    return angles.cos().unsqueeze(-3), angles.sin().unsqueeze(-3)


def rotate(x, rope):
    """Pairs element i with i + D/2. x [B, H, T, D]."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = rope
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_heads, self.n_kv, self.head_dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.n_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.n_kv * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, self.n_kv * c.head_dim, bias=False)
        self.o_proj = nn.Linear(self.n_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.rms_norm_eps), Norm(c.head_dim, c.rms_norm_eps)

    def split(self, x, n):
        return x.view(*x.shape[:-1], n, self.head_dim).transpose(-3, -2)

    def keys_values(self, x, rope):
        """x [B, T, hidden] → rotated keys, values, each [B, n_kv, T, D]."""
        values = self.split(self.v_proj(x), self.n_kv)
        return rotate(self.k_norm(self.split(self.k_proj(x), self.n_kv)), rope).to(values.dtype), values

    def forward(self, x, rope, keys, values, **mask):
        queries = rotate(self.q_norm(self.split(self.q_proj(x), self.n_heads)), rope).to(values.dtype)
        group = self.n_heads // self.n_kv
        if x.shape[1] == 1:
            # One row: its heads of a group become rows of one head, and no key is copied. What matters when decoding.
            mixed = F.scaled_dot_product_attention(queries.view(-1, self.n_kv, group, self.head_dim), keys, values, **mask).view_as(queries)
        else:
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            mixed = F.scaled_dot_product_attention(queries, keys, values, **mask)
        return self.o_proj(mixed.transpose(-3, -2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps), Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn, self.mlp = Attention(c), Mlp(c)

    def forward(self, x, rope, cache=None, context=None, context_rope=None, **mask):
        """`cache`: rows of earlier calls, grown in place. `context`: rows (the drafter's) that give keys and values, and no queries."""
        n = self.input_layernorm(x)
        keys, values = self.self_attn.keys_values(n, rope)
        if context is not None:
            # The context is not normed per layer: hidden_norm has been over it once.
            k, v = self.self_attn.keys_values(context, context_rope)
            keys, values = torch.cat((k, keys), -2), torch.cat((v, values), -2)
        if cache is not None:
            keys, values = cache.extend(keys, values)
        x = x + self.self_attn(n, rope, keys, values, **mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class LayerCache:
    """Keys and values of one layer; `length` says how many rows count, and may be lowered to forget rejected ones."""

    def __init__(self):
        self.length, self.keys, self.values = 0, None, None

    def extend(self, keys, values):
        end = self.length + keys.shape[-2]
        if self.keys is None or end > self.keys.shape[-2]:
            old = (self.keys, self.values)
            shape = (*keys.shape[:-2], max(2 * end, 256), keys.shape[-1])
            self.keys, self.values = keys.new_zeros(shape), keys.new_zeros(shape)
            if old[0] is not None:
                self.keys[..., : self.length, :] = old[0][..., : self.length, :]
                self.values[..., : self.length, :] = old[1][..., : self.length, :]
        self.keys[..., self.length:end, :], self.values[..., self.length:end, :] = keys, values
        self.length = end
        return self.keys[..., :end, :], self.values[..., :end, :]


def initialise(module, c):
    for name, p in module.named_parameters():
        if p.ndim < 2:
            continue
        # What a layer adds to the stream starts at nothing, so that depth costs no stability at the first steps.
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(p)
        else:
            nn.init.normal_(p, std=c.initializer_range if "embed" in name else p.shape[1] ** -0.5)


class Target(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.model.norm = Norm(c.hidden_size, c.rms_norm_eps)
        initialise(self, c)

    def forward(self, ids, positions=None, caches=None, mask=None, taps=()):
        """ids [B, T] → (hidden rows after the final norm [B, T, hidden], taps [B, T, len(taps) · hidden] or None).

        `mask` [B, 1, T, rows in the cache after this call], True: may look; without it attention is causal.
        """
        start = caches[0].length if caches else 0
        if positions is None:
            positions = torch.arange(start, start + ids.shape[1])[None]
        if mask is None and start and ids.shape[1] > 1:
            mask = torch.ones(ids.shape[1], start + ids.shape[1], dtype=torch.bool).tril(start)
        how = {"attn_mask": mask} if mask is not None else {"is_causal": ids.shape[1] > 1}
        rope, x, tapped = rope_table(self.config, positions), self.model.embed_tokens(ids), {}
        for i, layer in enumerate(self.model.layers):
            x = layer(x, rope, caches[i] if caches else None, **how)
            if i in taps:
                tapped[i] = x
        return self.model.norm(x), torch.cat([tapped[i] for i in taps], -1) if taps else None

    def logits(self, hidden):
        return F.linear(hidden, self.model.embed_tokens.weight).float()

    def new_caches(self):
        return [LayerCache() for _ in self.model.layers]


class Drafter(nn.Module):
    """DFlash (arXiv 2602.06036): fills a block of masked tokens in one pass, from taps of the target, whose embedding and head it uses."""

    def __init__(self, c):
        super().__init__()
        self.config, self.taps, self.mask_id = c, c.dflash_config["target_layer_ids"], c.dflash_config["mask_token_id"]
        self.fc = nn.Linear(len(self.taps) * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm, self.norm = Norm(c.hidden_size, c.rms_norm_eps), Norm(c.hidden_size, c.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        initialise(self, c)

    def forward(self, block, block_positions, taps, tap_positions, mask=None):
        """block [B, L, hidden]: the block's tokens, embedded; taps [B, S, n · hidden] → hidden rows [B, L, hidden] for the head.

        `mask` [B, 1, L, S + L], True: may look; without it every row sees the whole context and the whole block, both ways.
        """
        context = self.hidden_norm(self.fc(taps))
        rope, context_rope = rope_table(self.config, block_positions), rope_table(self.config, tap_positions)
        for layer in self.layers:
            block = layer(block, rope, context=context, context_rope=context_rope, attn_mask=mask)
        return self.norm(block)


# Files ---------------------------------------------------------------------------------------------------------------

def read_config(folder):
    return SimpleNamespace(**json.loads((Path(folder) / "config.json").read_text()))


def load(kind, folder, round_to=None):
    """A checkpoint in float32; `round_to` rounds its weights to another type first."""
    model = kind(read_config(folder))
    weights = load_file(Path(folder) / "model.safetensors")
    model.load_state_dict({k: (w.to(round_to) if round_to else w).float() for k, w in weights.items()})
    return model.eval().requires_grad_(False)


def save(model, folder, dtype=torch.float32):
    Path(folder).mkdir(parents=True, exist_ok=True)
    config = {**vars(model.config), "torch_dtype": str(dtype).removeprefix("torch.")}
    (Path(folder) / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    weights = {k: v.detach().to(dtype).contiguous() for k, v in model.state_dict().items()}
    save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
    (Path(folder) / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner alone


# Decoding ------------------------------------------------------------------------------------------------------------

@torch.inference_mode()
def decode_plain(target, prompt, max_tokens, stop):
    """Greedy, one token a step → ids, with the stop token when it came."""
    caches, rows, out = target.new_caches(), torch.tensor([prompt]), []
    while len(out) < max_tokens and (not out or out[-1] != stop):
        hidden, _ = target(rows, caches=caches)
        out.append(int(target.logits(hidden[0, -1]).argmax()))
        rows = torch.tensor([[out[-1]]])
    return out


@torch.inference_mode()
def decode_drafted(target, drafter, prompt, max_tokens, stop, block_size):
    """Greedy with block drafts → (ids, cycles). A cycle drafts block_size - 1 tokens, keeps what the target chooses, adds its own."""
    caches = target.new_caches()
    hidden, taps = target(torch.tensor([prompt]), caches=caches, taps=drafter.taps)
    out, cycles = [int(target.logits(hidden[0, -1]).argmax())], 0
    while len(out) < max_tokens and out[-1] != stop:
        bonus, at = out[-1], taps.shape[1]  # rows 0..at-1 are committed, the bonus token belongs at `at`
        block = target.model.embed_tokens(torch.tensor([[bonus] + [drafter.mask_id] * (block_size - 1)]))
        rows = drafter(block, torch.arange(at, at + block_size)[None], taps, torch.arange(at)[None])
        draft = target.logits(rows[0, 1:]).argmax(-1).tolist()
        hidden, new_taps = target(torch.tensor([[bonus, *draft]]), caches=caches, taps=drafter.taps)
        chosen = target.logits(hidden[0]).argmax(-1).tolist()
        accepted = next((i for i, (d, c) in enumerate(zip(draft, chosen)) if d != c), len(draft))
        for cache in caches:
            cache.length = at + accepted + 1
        taps = torch.cat((taps, new_taps[:, : accepted + 1]), 1)
        cycles += 1
        for token in chosen[: accepted + 1]:
            out.append(token)
            if token == stop or len(out) == max_tokens:
                break
    return out, cycles
