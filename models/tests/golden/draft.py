"""DFlash golden files: two tiny pairs, trained here so that acceptance is not trivial, and what the reference drafters propose.

Part of make.py: `python models/tests/golden/make.py draft`. Besides make.py's packages it needs the reference drafters, which
are installed for this part alone:

    pip install --no-deps git+https://github.com/z-lab/dflash@44947fbf71114e241c96de194f4b382b5dd330d0
    pip install dflash-mlx==0.1.8 mlx-lm==0.32.2            (on Linux also mlx-cpu)

z-lab/dflash (torch) is the drafters' own publication, but its torch and MLX models know no mask for sliding layers; dflash-mlx
has the rule of vLLM (causal in the block, 0 <= q - k < window). So the pair of full layers is run in z-lab's model and compared
with dflash-mlx here, and the pair with sliding layers is run in dflash-mlx. Targets run in transformers. All in float32.
"""

import json
import shutil
from importlib import metadata

import numpy as np

from make import HERE, dump, load_reference, provenance, reference_versions, row

ZLAB_COMMIT = "44947fbf71114e241c96de194f4b382b5dd330d0"
BLOCK = 8
MASK_ID = 3
# The language: a ring of symbols on which each step goes 1, 2 or 5 places, as the last rule token before it said.
RULES, RING_START, RING = {4: 1, 5: 2, 6: 5}, 8, 48
VOCAB = RING_START + RING
PROMPT_LENGTHS = [1, 9, 40, 100]
CYCLES = 14
# A margin below this decides nothing across libraries: the test records such a choice and does not compare it.
UNDECIDED = 1e-4

TARGET = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
          "head_dim": 16, "intermediate_size": 48, "tie_word_embeddings": True}
PAIRS = {
    # All layers full, YaRN by old keys, flat tensor names, taps in order.
    "dflash-full": {
        "reference": "zlab",
        "config": {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
                   "intermediate_size": 48, "block_size": BLOCK, "num_target_layers": 3,
                   "layer_types": ["full_attention"] * 2, "sliding_window": None, "rope_theta": 10000.0,
                   "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
                   "max_position_embeddings": 256,
                   "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [0, 1]}},
        "prefix": "",
        "steps": 700,
    },
    # Sliding and full layers, the new RoPE key, block size inside, names under "model.", taps out of order.
    "dflash-sliding": {
        "reference": "dflash-mlx",
        "config": {"num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
                   "intermediate_size": 40, "num_target_layers": 3,
                   "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 11,
                   "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
                   "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [2, 0, 1], "block_size": BLOCK}},
        "prefix": "model.",
        "steps": 700,
    },
}


def sentences(rng, count, length):
    """Random walks on the ring [count, length]; the rule changes now and then, and a place is jumped to now and then."""
    out = np.empty((count, length), dtype=np.int64)
    for line in out:
        at = 0
        while at < length:
            rule = int(rng.choice(list(RULES)))
            line[at] = rule
            step, place, at = RULES[rule], int(rng.integers(RING)), at + 1
            for _ in range(int(rng.integers(8, 40))):
                if at == length:
                    break
                line[at] = RING_START + place
                place, at = (place + step) % RING, at + 1
    return out


def qwen3_config(sizes, **more):
    return {"model_type": "qwen3", "hidden_size": TARGET["hidden_size"], "vocab_size": VOCAB, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 512, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
            "use_sliding_window": False, "torch_dtype": "float32", "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
            **sizes, **more}


def write(folder, config, weights, prefix=""):
    from safetensors.torch import save_file

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    file = folder / "model.safetensors"
    save_file({prefix + name: w.detach().contiguous() for name, w in weights.items()}, file, metadata={"format": "pt"})
    file.chmod(0o644)


def fit(parameters, steps, loss):
    """Adam with warm-up and a falling rate. loss(step) → scalar."""
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.98), weight_decay=0.0)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 50) * (0.05 + 0.95 * (1 - s / steps)))
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(step)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        rate.step()
    return value.item()


def train_target(folder, seed):
    import torch
    import torch.nn.functional as F
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    config = qwen3_config(TARGET, architectures=["Qwen3ForCausalLM"], rope_theta=10000.0, rope_scaling=None)
    model = Qwen3ForCausalLM(Qwen3Config(**config, attn_implementation="eager"))

    def loss(_):
        ids = torch.from_numpy(sentences(rng, 16, 112))
        return F.cross_entropy(model(ids).logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1))

    last = fit(list(model.parameters()), 900, loss)
    write(folder, config, {name: w for name, w in model.state_dict().items() if name != "lm_head.weight"})
    print(f"{folder.name}: last loss {last:.3f}")


def crop(cache, length):
    """Drops rows behind `length`; transformers 5 takes the number to remove, negative."""
    if cache.get_seq_length() > length:
        cache.crop(length - cache.get_seq_length())


class Target:
    """The target with its cache, giving raw layer outputs by hooks: its last layer is tapped too, before the final norm."""

    def __init__(self, model, taps):
        self.model, self.taps, self.seen, self.past = model, taps, {}, None
        for i in set(taps):
            model.model.layers[i].register_forward_hook(
                lambda _m, _in, out, i=i: self.seen.__setitem__(i, out[0] if isinstance(out, tuple) else out))

    def forward(self, ids):
        """ids [B, T] → (logits [B, T, V], taps [B, T, n·H])"""
        import torch

        out = self.model(ids, past_key_values=self.past, use_cache=self.past is not None)
        return out.logits, torch.cat([self.seen[i] for i in self.taps], dim=-1)

    def embed(self, ids):
        return self.model.model.embed_tokens(ids)

    def head(self, hidden):
        return self.model.lm_head(hidden)


def zlab_model(config):
    from dflash.model import DFlashDraftModel
    from transformers import Qwen3Config

    flat = {**config, "block_size": BLOCK}
    return DFlashDraftModel(Qwen3Config(**flat, attn_implementation="eager"))


def train_drafter(folder, spec, target, seed):
    """Blocks of the target's language at random anchors, each position weighted less than the one before. Without windows, which
    z-lab's model does not know: a drafter with sliding layers proposes somewhat worse for it, and no less definitely."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    config = qwen3_config(spec["config"], architectures=["DFlashDraftModel"], tie_word_embeddings=False)
    model = zlab_model(config)
    weights = torch.exp(-torch.arange(BLOCK - 1) / 5.0)

    def loss(_):
        length = int(rng.integers(1, 100))
        ids = torch.from_numpy(sentences(rng, 32, length + BLOCK))
        with torch.no_grad():
            target.past = None
            taps = target.forward(ids[:, :length])[1]
            block = torch.full((len(ids), BLOCK), MASK_ID)
            block[:, 0] = ids[:, length]
            rows = target.embed(block)
        out = model(target_hidden=taps, noise_embedding=rows, position_ids=torch.arange(length + BLOCK)[None])
        each = F.cross_entropy(target.head(out[:, 1:]).transpose(1, 2), ids[:, length + 1:], reduction="none")
        return (each * weights).mean()

    last = fit(list(model.parameters()), spec["steps"], loss)
    write(folder, config, model.state_dict(), spec["prefix"])
    print(f"{folder.name}: last loss {last:.3f}")


class ZlabDrafter:
    """z-lab/dflash, dflash/model.py, with the cache handling of its own loop."""

    def __init__(self, folder):
        import torch
        from safetensors.torch import load_file
        from transformers import DynamicCache

        self.model = zlab_model(json.loads((folder / "config.json").read_text())).eval()
        self.model.load_state_dict({k.removeprefix("model."): v for k, v in load_file(folder / "model.safetensors").items()})
        self.past, self.torch = DynamicCache(), torch

    def hidden(self, taps, embeddings, start):
        """taps [S, n·H] of the rows committed since the last call, embeddings [L, H], the block's position → [L-1, H]."""
        positions = self.torch.arange(self.past.get_seq_length(), start + len(embeddings))[None]
        out = self.model(target_hidden=taps[None], noise_embedding=embeddings[None], position_ids=positions,
                         past_key_values=self.past, use_cache=True, is_causal=False)
        crop(self.past, start)
        return out[0, 1:]


class MlxDrafter:
    """dflash-mlx, its whole context kept (no sink, a cache longer than any context here)."""

    def __init__(self, folder):
        import mlx.core as mx
        import torch
        from dflash_mlx.model import ContextOnlyDraftKVCache, DFlashDraftModel, DFlashDraftModelArgs

        mx.set_default_device(mx.cpu)
        config = json.loads((folder / "config.json").read_text())
        config["rope_theta"] = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        config["block_size"] = BLOCK
        self.model = DFlashDraftModel(DFlashDraftModelArgs.from_dict(config))
        weights = mx.load(str(folder / "model.safetensors"))
        self.model.load_weights([(name.removeprefix("model."), w) for name, w in weights.items()])
        self.cache = [ContextOnlyDraftKVCache(sink_size=0, window_size=1 << 20) for _ in self.model.layers]
        self.mx, self.torch = mx, torch

    def hidden(self, taps, embeddings, start):
        taps, embeddings = (self.mx.array(x.numpy()[None]) for x in (taps, embeddings))
        out = self.model(noise_embedding=embeddings, target_hidden=taps, cache=self.cache)
        assert self.cache[0].offset == start
        return self.torch.from_numpy(np.array(out[0, 1:]))


def choose(logits):
    """[rows, V] → (ids, best minus second). Ties: lowest id."""
    best = logits.topk(2, dim=-1).values
    return np.argmax(logits.numpy(), axis=-1).tolist(), (best[:, 0] - best[:, 1]).tolist()


def drafted_run(target, drafter, prompt, check=None):
    """z-lab's loop (`dflash_generate`), greedy, with what decided it: → (ids after the prompt, cycles, hidden rows of the first)."""
    import torch
    from transformers import DynamicCache

    with torch.inference_mode():
        target.past = DynamicCache()
        logits, taps = target.forward(torch.tensor([prompt]))
        taps, (first, _) = taps[0], choose(logits[0, -1:])
        ids, cycles, first_hidden, start = list(first), [], None, len(prompt)
        for _ in range(CYCLES):
            block = torch.tensor([ids[-1]] + [MASK_ID] * (BLOCK - 1))
            hidden = drafter.hidden(taps, target.embed(block), start)
            if check:
                other = check.hidden(taps, target.embed(block), start)
                assert (hidden - other).abs().max() < 1e-3, "the references agree"
            first_hidden = hidden if first_hidden is None else first_hidden
            drafted, draft_margins = choose(target.head(hidden))
            logits, taps = target.forward(torch.tensor([[ids[-1], *drafted]]))
            chosen, margins = choose(logits[0])
            accepted = next((i for i, d in enumerate(drafted) if d != chosen[i]), BLOCK - 1)
            cycles.append({"drafted": drafted, "accepted": accepted, "draft_margins": draft_margins,
                           "target_margins": margins[:accepted + 1]})
            ids += chosen[:accepted + 1]
            start += accepted + 1
            crop(target.past, start)
            taps = taps[0, :accepted + 1]
        return ids, cycles, first_hidden


def zlab_generate(drafter_folder, target_model, prompt, count):
    """Ids after the prompt by z-lab's own loop, which was written for transformers 4's `crop`."""
    import dflash.model
    import torch
    import transformers

    class Cache(transformers.DynamicCache):
        def crop(self, length):
            crop(super(), length)

    dflash.model.DynamicCache = Cache
    out = dflash.model.dflash_generate(ZlabDrafter(drafter_folder).model, target_model, torch.tensor([prompt]), count, None, 0.0)
    return out[0, len(prompt):].tolist()


def make_draft():
    import torch

    torch.set_num_threads(1)
    folder = HERE / "dflash-target"
    train_target(folder, 7)
    for name, spec in PAIRS.items():
        taps = spec["config"]["dflash_config"]["target_layer_ids"]
        target = Target(load_reference(folder), taps)
        train_drafter(HERE / name, spec, target, 11)
        rng = np.random.default_rng(3)
        cases = []
        for length in PROMPT_LENGTHS:
            prompt = sentences(rng, 1, max(length, 2))[0, -length:].tolist()
            if spec["reference"] == "zlab":
                ids, cycles, hidden = drafted_run(target, ZlabDrafter(HERE / name), prompt, MlxDrafter(HERE / name))
                # Its taps come from hidden_states, whose last entry is normed: right as long as the last layer is not tapped.
                assert ids == zlab_generate(HERE / name, load_reference(folder), prompt, len(ids))
            else:
                ids, cycles, hidden = drafted_run(target, MlxDrafter(HERE / name), prompt)
            rounded = [{key: [round(m, 5) for m in value] if key.endswith("margins") else value for key, value in cycle.items()}
                       for cycle in cycles]
            cases.append({"prompt": prompt, "greedy": ids, "first_hidden": row(hidden.flatten()), "cycles": rounded})
            print(f"{name}, prompt of {length}: accepted {[c['accepted'] for c in cycles]}, least margin "
                  f"{min(min(c['draft_margins'] + c['target_margins']) for c in cycles):.2g}")
        counts = [c["accepted"] for case in cases for c in case["cycles"]]
        assert any(0 < c < BLOCK - 1 for c in counts) and any(c == 0 for c in counts)
        mlx = {package: metadata.version(package) for package in ("dflash-mlx", "mlx", "mlx-lm")}
        dump(HERE / f"{name}.json", {
            "provenance": provenance("draft", **reference_versions(), **mlx, **{"z-lab/dflash": ZLAB_COMMIT}),
            "target": "models/tests/golden/dflash-target",
            "drafter": f"models/tests/golden/{name}",
            "reference": {"zlab": "z-lab/dflash dflash/model.py (torch), hidden rows within 1e-3 of dflash-mlx in every cycle",
                          "dflash-mlx": "dflash-mlx dflash_mlx/model.py"}[spec["reference"]],
            "arithmetic": "float32, greedy; processor: CPU",
            "meaning": {
                "greedy": "ids after the prompt: the first by prefill, then each cycle's accepted ids and the target's next",
                "first_hidden": "the first cycle's hidden rows 1.. behind the final norm, row by row",
                "cycles": "drafted ids, how many of them were accepted, best minus second logit of each drafted id and of the "
                          "target's choices that decided (rows 0..accepted)",
            },
            "undecided": UNDECIDED,
            "block": BLOCK,
            "cases": cases,
        })
