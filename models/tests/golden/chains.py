"""Golden files of the drafters that choose one token a forward: a small model (kind `model`) and EAGLE-3 (kind `eagle3`).

Part of make.py: `python models/tests/golden/make.py chains`. The language, the trained target `dflash-target` and the helpers
are draft.py's. Small models run in transformers: every draft by a forward over all ids, without a cache. EAGLE-3 runs in the
speculators package, which is installed for this part alone (only its model code is used):

    pip install speculators==0.9.0

Its forward reads given ids (it was written for training), so each draft is one call with the drafts before it. The drafter is
trained here by a torch module of the same arithmetic, which then drafts beside the package and must agree. All in float32.
"""

import importlib.machinery
import importlib.util
import json
import sys
import types

import numpy as np

from draft import RING, RING_START, RULES, UNDECIDED, VOCAB, Target, fit, qwen3_config, sentences, write
from make import HERE, dump, load_reference, noise, provenance, reference_versions, word

PROMPT_LENGTHS = [1, 9, 40, 100]
CYCLES = 8
# Rows of the blocks of the cycles, in turn.
BLOCKS = {"model": [16, 4, 2, 9], "eagle3": [6, 4, 2, 5]}
SAMPLING = {"temperature": 0.8, "seed": 0x0123456789ABCDEF, "sample": 2}

LLAMA_TARGET = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 48, "tie_word_embeddings": False}
# Small models: (target, config class, sizes, rows of padding after the ids, steps of training).
SMALL = {
    # Inputs of whole groups, so that it can be quantized; more rows than ids.
    "model-qwen3": ("dflash-target", "qwen3", {
        "vocab_size": VOCAB + 8, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 64, "tie_word_embeddings": True}, 260),
    "model-llama": ("model-llama-target", "llama", {
        "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 40, "tie_word_embeddings": False}, 300),
}
# Ids that the EAGLE-3 drafter can propose: not all that the target says.
DRAFTED_IDS = [i for i in range(VOCAB) if i in RULES or (i >= RING_START and i % 11 != 3)]
EAGLE = {
    # A Llama layer, the residual from the stream as it is.
    "eagle3-llama": {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False,
                     "layer": {"model_type": "llama", "attention_bias": False, "mlp_bias": False}},
    # A Qwen3 layer with everything that can be switched on.
    "eagle3-qwen3": {"norm_before_residual": True, "norm_before_fc": False, "fc_norm": True, "norm_output": True,
                     "layer": {"model_type": "qwen3", "attention_bias": False}},
}
EAGLE_IDS = [1, 2]
TTT_STEPS = 4


def llama_config(sizes):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
            "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_theta": 10000.0, "rope_scaling": None,
            "torch_dtype": "float32", "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None, **sizes}


def train_model(folder, family, sizes, steps, seed):
    import torch
    import torch.nn.functional as F
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    if family == "qwen3":
        config = qwen3_config(sizes, architectures=["Qwen3ForCausalLM"], rope_theta=10000.0, rope_scaling=None)
        model = Qwen3ForCausalLM(Qwen3Config(**config, attn_implementation="eager"))
    else:
        config = llama_config(sizes)
        model = LlamaForCausalLM(LlamaConfig(**config, attn_implementation="eager"))

    def loss(_):
        ids = torch.from_numpy(sentences(rng, 16, 112))
        return F.cross_entropy(model(ids).logits[:, :-1].reshape(-1, sizes["vocab_size"]), ids[:, 1:].reshape(-1))

    last = fit(list(model.parameters()), steps, loss)
    tied = sizes["tie_word_embeddings"]
    write(folder, config, {name: w for name, w in model.state_dict().items() if not (tied and name == "lm_head.weight")})
    print(f"{folder.name}: last loss {last:.3f}")


# ---------------------------------------------------------------------------------------------------------------------
# Choices, greedy or with the target's noise.


def pick(logits, position, sampling):
    """The id at `position` and how far the choice was from another. Ties: lowest id."""
    logits = np.asarray(logits, dtype=np.float64)
    if sampling is None:
        scores = logits
    else:
        key = (sampling["seed"], sampling["sample"], position)
        scores = logits / sampling["temperature"] + [noise(word(*key, i)) for i in range(len(logits))]
    best = int(np.argmax(scores))
    return best, float(scores[best] - np.delete(scores, best).max())


def rows(model, ids, limit):
    """Logits of all rows, of ids below the limit."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, :, :limit].numpy()


def drafted_run(target, draft, prompt, blocks, sampling, vocab=VOCAB):
    """`draft(ids, count, sampling)` → (drafts of the token after `ids`, margins). → (ids after the prompt, cycles)."""
    out, cycles = [pick(rows(target, prompt, vocab)[-1], len(prompt), sampling)[0]], []
    for cycle in range(CYCLES):
        ids, block = prompt + out, blocks[cycle % len(blocks)]
        drafted, draft_margins = draft(ids, block - 1, sampling)
        logits = rows(target, ids + drafted, vocab)[len(ids) - 1:]
        chosen, margins = zip(*(pick(row, len(ids) + at, sampling) for at, row in enumerate(logits)))
        accepted = next((at for at, d in enumerate(drafted) if d != chosen[at]), len(drafted))
        cycles.append({"block": block, "drafted": drafted, "accepted": accepted, "draft_margins": [round(m, 5) for m in draft_margins],
                       "target_margins": [round(m, 5) for m in margins[:accepted + 1]]})
        out += chosen[:accepted + 1]
    return out, cycles


def small_draft(model):
    def draft(ids, count, sampling):
        drafted, margins = [], []
        for _ in range(count):
            token, margin = pick(rows(model, ids + drafted, VOCAB)[-1], len(ids) + len(drafted), sampling)
            drafted.append(token)
            margins.append(margin)
        return drafted, margins

    return draft


def cases_of(target, draft, blocks):
    rng = np.random.default_rng(3)
    cases = []
    for length in PROMPT_LENGTHS:
        prompt = sentences(rng, 1, max(length, 2))[0, -length:].tolist()
        for sampling in (None, SAMPLING):
            out, cycles = drafted_run(target, draft, prompt, blocks, sampling)
            cases.append({"prompt": prompt, "temperature": sampling["temperature"] if sampling else 0.0, "out": out, "cycles": cycles})
            print(f"  prompt of {length}, {'sampled' if sampling else 'greedy'}: accepted {[c['accepted'] for c in cycles]}, least "
                  f"margin {min(min(c['draft_margins'] + c['target_margins']) for c in cycles):.2g}")
    counts = [(c["accepted"], c["block"] - 1) for case in cases for c in case["cycles"]]
    assert any(a == 0 for a, _ in counts) and any(0 < a < b for a, b in counts) and any(a == b > 1 for a, b in counts)
    return cases


def dump_cases(name, target, reference, versions, cases):
    dump(HERE / f"{name}.json", {
        "provenance": provenance("chains", **reference_versions(), **versions),
        "target": f"models/tests/golden/{target}",
        "drafter": f"models/tests/golden/{name}",
        "reference": reference,
        "arithmetic": "float32, choices in float64; processor: CPU",
        "meaning": {
            "out": "ids after the prompt: the first by prefill, then each cycle's accepted ids and the target's next",
            "cycles": "rows of the block, drafted ids, how many of them were accepted, distance of each drafted id and of the target's "
                      "choices that decided (rows 0..accepted) from another choice: of logits, or of logits / temperature + noise",
        },
        "undecided": UNDECIDED,
        "seed": SAMPLING["seed"],
        "sample": SAMPLING["sample"],
        "cases": cases,
    })


# ---------------------------------------------------------------------------------------------------------------------
# EAGLE-3


def eagle_config(spec):
    layer = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 48,
             "vocab_size": VOCAB, "num_hidden_layers": 1, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu",
             "rope_theta": 10000.0, "tie_word_embeddings": False, "pad_token_id": None, **spec["layer"]}
    return {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": len(DRAFTED_IDS),
            "eagle_aux_hidden_state_layer_ids": EAGLE_IDS, "transformer_layer_config": layer,
            "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy",
                                   "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
                                   "verifier": {"name_or_path": None, "architectures": ["Qwen3ForCausalLM"]}},
            **{key: value for key, value in spec.items() if key != "layer"}}


class EmptyModules:
    """Finds the packages of UNUSED as modules whose every name is an empty class."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] in UNUSED else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


# What the package imports beside its model code.
UNUSED = []


def speculators_package():
    """Makes the package importable without what it does not need here."""
    names = ["openai", "hs_connectors", "datasets", "loguru", "aiohttp", "typer", "httpx", "psutil", "pydantic_settings"]
    if not UNUSED:
        UNUSED.extend(name for name in names if importlib.util.find_spec(name) is None)
        sys.meta_path.append(EmptyModules())


def speculators_model(config):
    """The package's model of this config, its attention computed eagerly."""
    speculators_package()
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    read = Eagle3SpeculatorConfig(**config)
    read.transformer_layer_config._attn_implementation = "eager"
    return Eagle3DraftModel(read).eval()


class Eagle:
    """The same arithmetic for training: steps of test-time training by hand, weights in the package's model."""

    def __init__(self, model):
        self.model, self.config = model, model.config

    def heads(self, x, norm):
        return norm(x) if norm else x

    def features(self, taps):
        m = self.model
        if m.input_norm is not None:
            taps = m.input_norm(taps)
        if m.fc_norm is not None:
            import torch

            taps = torch.cat([norm(part) for norm, part in zip(m.fc_norm, taps.chunk(len(m.fc_norm), dim=-1))], dim=-1)
        return m.fc(taps)

    def layer(self, ids, hidden, positions, past, mask):
        """ids, positions [B, T], hidden [B, T, H]; past: keys and values of the steps before, each [B, T, h, D]; mask(scores of the
        first step) → output [B, T, H] before the final norm. Row i attends to the first step's rows up to i, and to its own rows of
        the later steps."""
        import torch

        layer, tl = self.model.layers[0], self.config.transformer_layer_config
        embeds, normed = layer.input_layernorm(self.model.embed_tokens(ids)), layer.hidden_norm(hidden)
        residual = normed if layer.norm_before_residual else hidden
        x, a = torch.cat([embeds, normed], dim=-1), layer.self_attn
        shape = (*ids.shape, -1, tl.head_dim)
        q, k, v = a.q_proj(x).view(shape), a.k_proj(x).view(shape), a.v_proj(x).view(shape)
        q, k = self.heads(q, getattr(a, "q_norm", None)), self.heads(k, getattr(a, "k_norm", None))
        half = tl.head_dim // 2
        angles = positions[..., None, None] * (10000.0 ** (-torch.arange(half) / half))
        cos, sin = angles.cos(), angles.sin()
        q, k = (torch.cat([y[..., :half] * cos - y[..., half:] * sin, y[..., half:] * cos + y[..., :half] * sin], dim=-1) for y in (q, k))
        group = tl.num_attention_heads // tl.num_key_value_heads
        past.append((k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
        scale = tl.head_dim ** -0.5
        first = mask(torch.einsum("bthd,bshd->bhts", q, past[0][0]) * scale)
        own = [torch.einsum("bthd,bthd->bht", q, key)[..., None] * scale for key, _ in past[1:]]
        shares = torch.softmax(torch.cat([first, *own], dim=-1), dim=-1)
        T = past[0][0].shape[1]
        out = torch.einsum("bhts,bshd->bthd", shares[..., :T], past[0][1])
        for at, (_, value) in enumerate(past[1:]):
            out = out + shares[..., T + at].transpose(1, 2)[..., None] * value
        x = residual + a.o_proj(out.flatten(2))
        return x + layer.mlp(layer.post_attention_layernorm(x))

    def logits(self, hidden):
        """→ (logits of the draft's ids, hidden state of the next row)."""
        normed = self.model.norm(hidden)
        return self.model.lm_head(normed), normed if self.config.norm_output else hidden


def causal(scores):
    import torch

    T = scores.shape[-1]
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))


def train_eagle(folder, spec, target, seed):
    import torch
    import torch.nn.functional as F

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    config = eagle_config(spec)
    model = speculators_model(config)
    kept = torch.tensor(DRAFTED_IDS)
    with torch.no_grad():
        for name, w in model.named_parameters():
            w.copy_(1.0 + 0.1 * torch.randn(w.shape) if w.dim() == 1 else torch.randn(w.shape) / w.shape[-1] ** 0.5)
        model.embed_tokens.weight.copy_(target.model.model.embed_tokens.weight)
        model.lm_head.weight.copy_(target.model.lm_head.weight[kept])
        model.d2t.copy_(kept - torch.arange(len(kept)))
        model.t2d.zero_()[kept] = True
    eagle = Eagle(model)
    row_of = torch.full((VOCAB,), -100)
    row_of[kept] = torch.arange(len(kept))
    model.lm_head.weight.requires_grad_(True)
    trained = [w for name, w in model.named_parameters() if w.requires_grad]

    def loss(_):
        ids = torch.from_numpy(sentences(rng, 16, 80))
        with torch.no_grad():
            target.past = None
            taps = target.forward(ids)[1][:, :-TTT_STEPS - 1]
        T, total, past = taps.shape[1], 0.0, []
        hidden = eagle.features(taps)
        for step in range(TTT_STEPS):
            positions = torch.arange(T)[None].expand(len(ids), T) + step
            hidden = eagle.layer(ids[:, 1 + step:1 + step + T], hidden, positions, past, causal)
            logits, hidden = eagle.logits(hidden)
            total = total + 0.8 ** step * F.cross_entropy(logits.transpose(1, 2), row_of[ids[:, 2 + step:2 + step + T]])
        return total

    last = fit(trained, 420, loss)
    tensors = {name: w for name, w in model.state_dict().items() if not name.startswith("verifier_")}
    write(folder, config, tensors)
    print(f"{folder.name}: last loss {last:.3f}")
    return model.eval()


def eagle_draft(model, target):
    """Drafts in the package's forward: row C - 1 reads the bonus token; ids after it are read by the later steps alone."""
    import torch

    ids_of = model.d2t + torch.arange(len(model.d2t))
    eagle, seen = Eagle(model), []
    model.lm_head.register_forward_hook(lambda _m, _in, out: seen.append(out))

    def by_package(taps, ids, drafted):
        C, extra = len(ids) - 1, len(drafted)
        padded = torch.cat([taps, torch.zeros(1, extra, taps.shape[-1])], dim=1)
        seen.clear()
        read = torch.tensor([ids[1:] + drafted])
        model(padded, read, torch.zeros(1, C + extra, dtype=torch.long), ttt_steps=extra + 1)
        return seen[-1][0, C - 1]

    def by_hand(taps, ids, drafted):
        hidden, past = eagle.features(taps), []
        for step in range(len(drafted) + 1):
            T = len(ids) - 1
            # Rows before the last one attend to their own past only; what they read after the first step does not matter.
            read = torch.tensor([ids[1:]]) if step == 0 else torch.full((1, T), drafted[step - 1])
            positions = torch.arange(T)[None] + step
            logits, hidden = eagle.logits(eagle.layer(read, hidden, positions, past, causal))
        return logits[0, -1]

    def draft(ids, count, sampling):
        drafted, margins = [], []
        with torch.inference_mode():
            target.past = None
            taps = target.forward(torch.tensor([ids[:-1]]))[1]
            for _ in range(count):
                few = by_package(taps, ids, drafted)
                assert (few - by_hand(taps, ids, drafted)).abs().max() < 1e-3, "the package and the training agree"
                logits = np.full(VOCAB, -np.inf)
                logits[ids_of.numpy()] = few.numpy()
                token, margin = pick(logits, len(ids) + len(drafted), sampling)
                drafted.append(token)
                margins.append(margin)
        return drafted, margins

    return draft


def make_chains():
    import torch

    torch.set_num_threads(1)
    train_model(HERE / "model-llama-target", "llama", LLAMA_TARGET, 700, 8)
    for name, (target, family, sizes, steps) in SMALL.items():
        train_model(HERE / name, family, sizes, steps, 12)
        if sizes["vocab_size"] > VOCAB:
            vocab = {f"t{i}": i for i in range(VOCAB - 1)}
            tokenizer = {"added_tokens": [{"id": VOCAB - 1, "content": "<end>"}], "model": {"type": "BPE", "vocab": vocab, "merges": []}}
            (HERE / name / "tokenizer.json").write_text(json.dumps(tokenizer) + "\n")
        cases = cases_of(load_reference(HERE / target), small_draft(load_reference(HERE / name)), BLOCKS["model"])
        dump_cases(name, target, "transformers, a forward over all ids for each choice", {}, cases)
    for name, spec in EAGLE.items():
        from importlib import metadata

        # Id j is the state that enters layer j.
        tapped = Target(load_reference(HERE / "dflash-target"), [j - 1 for j in EAGLE_IDS])
        model = train_eagle(HERE / name, spec, tapped, 13)
        cases = cases_of(load_reference(HERE / "dflash-target"), eagle_draft(model, tapped), BLOCKS["eagle3"])
        dump_cases(name, "dflash-target", "speculators models/eagle3 (torch), logits within 1e-3 of the loop that trains in chains.py",
                   {"speculators": metadata.version("speculators")}, cases)
