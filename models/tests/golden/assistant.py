"""Golden files of the assistants of Gemma 4 (`gemma4_assistant`), with a head for all ids and with one for the ids of the best clusters.

Part of make.py: `python models/tests/golden/make.py assistant`. It needs the packages of draft_tokens.py and `gemma4-draft-target` of
gemma_draft.py, which is the target of the first assistant. The second one has an edge model as its target, with inputs of each layer and
layers that share keys and values, which is trained here.

The loop is plain torch. It keeps nothing from cycle to cycle: the target reads all ids again, and its own cache gives the keys and values
to which the assistant attends. They are those of its last layers of each kind that have some. Queries stand at the position of the last
of these rows, as in vLLM and mlx-vlm; transformers places them one position later. Drafts of a sampled run use the target's noise.
"""

from importlib import metadata

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from draft import CYCLES, PROMPT_LENGTHS, UNDECIDED, VOCAB, fit, sentences, write
from draft_tokens import Norm
from gemma_draft import HIDDEN, KINDS, RULES, TARGET, TEXT
from make import HERE, choose, dump, load_reference, provenance, reference_versions

BLOCK = 8
WINDOW = 24
EDGE = "gemma4-draft-edge"
LAYERS_OF_EDGE, SHARED = "sfssf", 2
EDGE_CONFIG = {**TEXT, "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": len(LAYERS_OF_EDGE), "sliding_window": WINDOW,
               "layer_types": [KINDS[kind] for kind in LAYERS_OF_EDGE], "attention_k_eq_v": False, "num_global_key_value_heads": None,
               "num_kv_shared_layers": SHARED, "use_double_wide_mlp": True, "intermediate_size": 24, "hidden_size_per_layer_input": 8,
               "vocab_size_per_layer_input": VOCAB, "tie_word_embeddings": True}
OWN = 16
LAYERS = "sssf"
ASSISTANT = {**TEXT, "hidden_size": OWN, "num_hidden_layers": len(LAYERS), "layer_types": [KINDS[kind] for kind in LAYERS],
             "sliding_window": WINDOW, "intermediate_size": 24, "num_kv_shared_layers": len(LAYERS), "tie_word_embeddings": True,
             "vocab_size_per_layer_input": 0}
CLUSTERS, BEST_CLUSTERS = 14, 6
PAIRS = {
    "assistant-dense": {"target": TARGET, "owners": {"sliding_attention": 5, "full_attention": 6}, "edge": False},
    "assistant-edge": {"target": EDGE, "owners": {"sliding_attention": 2, "full_attention": 1}, "edge": True},
}


def config_of(spec):
    text = {key: value for key, value in ASSISTANT.items() if key not in ("architectures",)}
    if spec["edge"]:
        text |= {"attention_k_eq_v": False, "num_global_key_value_heads": None}
    head = {"num_centroids": CLUSTERS, "centroid_intermediate_top_k": BEST_CLUSTERS} if spec["edge"] else {}
    return {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "backbone_hidden_size": HIDDEN,
            "use_ordered_embeddings": spec["edge"], **head, "tie_word_embeddings": True, "dtype": "float32", "text_config": text}


class Attention(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.heads = kind, TEXT["num_attention_heads"]
        self.size = TEXT["head_dim"] if kind == "sliding_attention" else TEXT["global_head_dim"]
        self.q_proj = nn.Linear(OWN, self.heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, OWN, bias=False)
        self.q_norm = Norm(self.size)

    def forward(self, x, keys, values):
        """x [B, H] at the position of the last of keys and values [B, heads of them, C, D]."""
        half, rope = self.size // 2, TEXT["rope_parameters"][self.kind]
        frequencies = rope["rope_theta"] ** (-torch.arange(half).double() / half)
        frequencies[int(rope.get("partial_rotary_factor", 1.0) * half):] = 0.0
        angle = (keys.shape[2] - 1) * frequencies
        cos, sin = angle.cos().float(), angle.sin().float()
        q = self.q_norm(self.q_proj(x).view(len(x), self.heads, self.size))
        first, second = q[..., :half], q[..., half:]
        q = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        if self.kind == "sliding_attention":
            keys, values = keys[:, :, -WINDOW:], values[:, :, -WINDOW:]
        keys, values = (y.repeat_interleave(self.heads // y.shape[1], dim=1) for y in (keys, values))
        weight = (q[:, :, None] @ keys.transpose(-1, -2)).softmax(-1)
        return self.o_proj((weight @ values).reshape(len(x), -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        inner = ASSISTANT["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(OWN, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, OWN, bias=False)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, kind, scalar):
        super().__init__()
        self.kind = KINDS[kind]
        self.input_layernorm, self.post_attention_layernorm = Norm(OWN), Norm(OWN)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = Norm(OWN), Norm(OWN)
        self.self_attn, self.mlp = Attention(self.kind), Mlp()
        self.layer_scalar = nn.Parameter(torch.tensor([scalar]))

    def forward(self, x, shared):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), *shared[self.kind]))
        return (x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))) * self.layer_scalar


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, OWN)
        self.layers = nn.ModuleList(Layer(kind, 0.9 + 0.1 * i) for i, kind in enumerate(LAYERS))
        self.norm = Norm(OWN)


class Clusters(nn.Module):
    def __init__(self):
        super().__init__()
        self.centroids = nn.Linear(OWN, CLUSTERS, bias=False)
        self.register_buffer("token_ordering", torch.from_numpy(np.random.default_rng(5).permutation(VOCAB)))


class Assistant(nn.Module):
    def __init__(self, spec, target):
        super().__init__()
        self.spec, self.target = spec, [target]
        self.model = Inner()
        self.pre_projection = nn.Linear(2 * HIDDEN, OWN, bias=False)
        self.post_projection = nn.Linear(OWN, HIDDEN, bias=False)
        self.masked_embedding = Clusters() if spec["edge"] else None

    def step(self, ids, hidden, shared):
        """ids [B], the hidden states of the rows that gave them [B, target's H] → (normed [B, H], the next such states)."""
        x = self.pre_projection(torch.cat([self.target[0].model.embed_tokens(ids), hidden], dim=-1))
        for layer in self.model.layers:
            x = layer(x, shared)
        x = self.model.norm(x)
        return x, self.post_projection(x)

    def logits(self, x):
        return x @ self.model.embed_tokens.weight.T

    def candidates(self, x):
        """x [H] → (logits of all ids, -inf for those of other clusters; distance of the last cluster taken from the first one left)."""
        logits = self.logits(x).double()
        if not self.spec["edge"]:
            return logits, np.inf
        best = self.masked_embedding.centroids(x).sort(descending=True)
        ids = self.masked_embedding.token_ordering.view(CLUSTERS, -1)[best.indices[:BEST_CLUSTERS]].flatten()
        out = torch.full_like(logits, -torch.inf)
        out[ids] = logits[ids]
        return out, (best.values[BEST_CLUSTERS - 1] - best.values[BEST_CLUSTERS]).item()


def read_target(target, ids, owners):
    """ids [B, T] → (logits, final hidden states [B, T, H], {kind: (keys, values) [B, heads, T, D]})."""
    from transformers import DynamicCache

    seen = []
    hook = target.model.norm.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    cache = DynamicCache()
    logits = target(ids, past_key_values=cache, use_cache=True).logits
    hook.remove()
    return logits, seen[0], {kind: (cache.layers[i].keys, cache.layers[i].values) for kind, i in owners.items()}


def rows_until(shared, length):
    return {kind: tuple(x[:, :, :length] for x in both) for kind, both in shared.items()}


def train_edge_target():
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**EDGE_CONFIG, attn_implementation="eager"))
    for i, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.8 + 0.05 * i)

    def loss(_):
        ids = torch.from_numpy(sentences(rng, 16, 112))
        return F.cross_entropy(model(ids, use_cache=False).logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1))

    last = fit(list(model.parameters()), 700, loss)
    write(HERE / EDGE, EDGE_CONFIG, {name: w for name, w in model.state_dict().items() if name != "lm_head.weight"})
    print(f"{EDGE}: last loss {last:.3f}", flush=True)


def train(name, spec, target):
    torch.manual_seed(11)
    rng = np.random.default_rng(11)
    assistant = Assistant(spec, target)
    if spec["edge"]:
        cluster = torch.empty(VOCAB, dtype=torch.long)
        cluster[assistant.masked_embedding.token_ordering] = torch.arange(VOCAB) // (VOCAB // CLUSTERS)

    def loss(_):
        length = int(rng.integers(1, 100))
        ids = torch.from_numpy(sentences(rng, 32, length + BLOCK))
        with torch.no_grad():
            _, hidden, shared = read_target(target, ids[:, :length], spec["owners"])
        hidden, total = hidden[:, -1], 0.0
        for at in range(BLOCK - 1):
            x, hidden = assistant.step(ids[:, length + at], hidden, shared)
            after = ids[:, length + at + 1]
            total = total + F.cross_entropy(assistant.logits(x), after) * 0.85 ** at
            if spec["edge"]:
                total = total + F.cross_entropy(assistant.masked_embedding.centroids(x), cluster[after]) * 0.85 ** at
        return total

    last = fit(list(assistant.parameters()), 500, loss)
    write(HERE / name, config_of(spec), assistant.state_dict())
    print(f"{name}: last loss {last:.3f}", flush=True)
    return assistant.eval()


def draft(assistant, bonus, hidden, shared, rule, start):
    """Drafts after the bonus token at position start: (ids, margins)."""
    ids, margins, before = [], [], bonus
    for at in range(BLOCK - 1):
        x, hidden = assistant.step(torch.tensor([before]), hidden, shared)
        logits, edge = assistant.candidates(x[0])
        before, _, margin = choose({**rule, "position": start + 1 + at}, logits.numpy())
        ids.append(before)
        margins.append(float(min(margin, edge)))
    return ids, margins


def run(target, assistant, prompt, rule):
    """A drafted run: (ids after the prompt, cycles)."""
    pick = lambda logits, position: choose({**rule, "position": position}, logits.double().numpy())  # noqa: E731
    owners, cycles = assistant.spec["owners"], []
    with torch.inference_mode():
        logits, hidden, shared = read_target(target, torch.tensor([prompt]), owners)
        committed, out = list(prompt), [pick(logits[0, -1], len(prompt))[0]]
        hidden = hidden[:, -1]
        for _ in range(CYCLES):
            start = len(committed)
            ids, margins = draft(assistant, out[-1], hidden, rows_until(shared, start), rule, start)
            logits, states, shared = read_target(target, torch.tensor([committed + [out[-1], *ids]]), owners)
            chosen = [pick(row, start + 1 + i) for i, row in enumerate(logits[0, start:])]
            accepted = next((i for i, d in enumerate(ids) if d != chosen[i][0]), len(ids))
            cycles.append({"drafted": ids, "accepted": accepted, "chosen": [token for token, *_ in chosen[:accepted + 1]],
                           "draft_margins": [round(min(m, 99.0), 6) for m in margins], "end_margins": [],
                           "target_margins": [round(min(m, 99.0), 6) for *_, m in chosen[:accepted + 1]]})
            committed += [out[-1], *ids[:accepted]]
            out += cycles[-1]["chosen"]
            hidden = states[:, len(committed) - 1]
        return out, cycles


def compare_with_mlx_vlm(name, assistant, target):
    """Greedy drafts of the published implementation, and its states after each of them."""
    import mlx.core as mx
    from mlx_vlm.speculative.drafters.gemma4_assistant.config import Gemma4AssistantConfig
    from mlx_vlm.speculative.drafters.gemma4_assistant.gemma4_assistant import Gemma4AssistantDraftModel

    mx.set_default_device(mx.cpu)
    model = Gemma4AssistantDraftModel(Gemma4AssistantConfig.from_dict(config_of(assistant.spec)))
    weights = mx.load(str(HERE / name / "model.safetensors"))
    model.load_weights(list(model.sanitize(weights).items()))
    model.bind(None)
    table = mx.array(target.model.embed_tokens(torch.arange(VOCAB)).detach().numpy())
    model._input_embed = lambda ids: table[ids]
    rng = np.random.default_rng(17)
    with torch.inference_mode():
        for length in (1, 20, 90):
            ids = sentences(rng, 1, length + 1)[0].tolist()
            _, hidden, shared = read_target(target, torch.tensor([ids[:-1]]), assistant.spec["owners"])
            own, margins = draft(assistant, ids[-1], hidden[:, -1], shared, RULES["greedy"], length)
            # All rows: of a window alone mlx-vlm leaves out the first row.
            given = {kind: tuple(mx.array(x.numpy()) for x in both) for kind, both in shared.items()}
            model.set_shared_kv(given, length, position=length - 1)
            theirs = model.draft_block(ids[-1], mx.array(hidden[:, -1:].numpy()), None, BLOCK, lambda x: mx.argmax(x, axis=-1))
            decided = next((i for i, m in enumerate(margins) if m < UNDECIDED), len(margins))
            assert theirs[0, :decided].tolist() == own[:decided], (name, length, theirs, own)
            both = mx.concatenate([table[mx.array([[ids[-1]]])], mx.array(hidden[:, -1:].numpy())], axis=-1)
            state, _ = model(both, given, mx.array([[length - 1]]))
            _, found = assistant.step(torch.tensor(ids[-1:]), hidden[:, -1], shared)
            worst = np.abs(np.array(state)[0] - found.numpy()).max()
            assert worst < 1e-3, (name, length, worst)


def make_pair(name, spec):
    target = load_reference(HERE / spec["target"]).requires_grad_(False)
    assistant = train(name, spec, target)
    compare_with_mlx_vlm(name, assistant, target)
    rng = np.random.default_rng(3)
    runs = []
    for rule_name, rule in RULES.items():
        for length in PROMPT_LENGTHS:
            prompt = sentences(rng, 1, max(length, 2))[0, -length:].tolist()
            ids, cycles = run(target, assistant, prompt, rule)
            runs.append({"rule": rule_name, "prompt": prompt, "ids": ids, "cycles": cycles})
            print(f"{name}, {rule_name}, prompt of {length}: accepted {[c['accepted'] for c in cycles]}", flush=True)
    counts = [c["accepted"] for case in runs for c in case["cycles"]]
    assert any(0 < c < BLOCK - 1 for c in counts) and 0 in counts
    packages = {package: metadata.version(package) for package in ("mlx-vlm", "mlx", "mlx-lm")}
    dump(HERE / f"{name}.json", {
        "provenance": provenance("assistant", **reference_versions(), **packages),
        "target": f"models/tests/golden/{spec['target']}",
        "drafter": f"models/tests/golden/{name}",
        "reference": ["plain torch loop, assistant.py", "states within 1e-3 of mlx-vlm, and its greedy drafts"],
        "arithmetic": "float32; choices in float64; processor: CPU",
        "meaning": {
            "ids": "ids after the prompt: the first by prefill, then each cycle's chosen ones",
            "cycles": "drafted ids, how many of them were accepted, the target's choices up to the first that is no draft; margins: "
                      "distance of each draft and of each of the target's choices from another outcome",
        },
        "undecided": UNDECIDED,
        "rows": BLOCK,
        "rules": RULES,
        "cases": runs,
    })


def make_assistant():
    torch.set_num_threads(1)
    train_edge_target()
    for name, spec in PAIRS.items():
        make_pair(name, spec)
