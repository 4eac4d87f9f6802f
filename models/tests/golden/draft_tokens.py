"""Golden files of the drafters that return token ids: DFlash 2, and DSpark in both of its layouts.

Part of make.py: `python models/tests/golden/make.py draft_tokens`. Besides make.py's packages it needs the published implementations,
against which the loop below is checked:

    pip install --no-deps mlx-vlm==0.7.10 speculators==0.9.0
    pip install mlx-lm==0.32.2 requests            (on Linux also mlx-cpu)

Drafters are trained here on the language of draft.py and its target `dflash-target`, so that acceptance is not trivial. The loop is
plain torch, written from the published code: it keeps no cache and reads the whole context again in every cycle, so that it shares
no mechanism with what it is compared with. mlx-vlm has no layer whose window counts from each row, so each pair is compared with
mlx-vlm with all layers full, and is then run with its own windows. Drafts of a sampled run use the target's noise (make.py).
"""

import json
from importlib import metadata
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from draft import CYCLES, MASK_ID, PROMPT_LENGTHS, TARGET, UNDECIDED, VOCAB, Target, crop, fit, qwen3_config, sentences, write
from make import HERE, choose, dump, load_reference, provenance, reference_versions

HIDDEN = TARGET["hidden_size"]
WINDOW = 11
# As in models/src/draft/dspark/mod.rs.
LEAST_CONFIDENCE = 0.1
# Ids that the head with a reduced vocabulary has.
DRAFT_VOCAB = 44
RULES = {
    "greedy": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "sample": 0},
    "sampled": {"temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_p": 0.0, "seed": 0x1_2345_6789, "sample": 2},
}

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 40,
          "rope_theta": 10000.0, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
PAIRS = {
    "dflash2-tiny": {
        "kind": "dflash2", "taps": [0, 1], "rows": 8, "bonus_proposes": False, "causal": False,
        "config": qwen3_config(LAYERS, architectures=["DFlash2DraftModel"], num_target_layers=3, is_causal=False, dflash_config={
            "block_size": 8, "mask_token_id": MASK_ID, "target_layer_ids": [0, 1], "conv_kernel_size": 3, "conv_group_size": 8,
            "selector_rank": 6, "selector_top_k": 5, "input_embedding_scale": 1.5, "output_multiplier": 0.5,
            "final_logit_softcapping": 20.0}),
    },
    "dspark-deepseek": {
        "kind": "dspark", "taps": [2, 0], "rows": 8, "bonus_proposes": True, "causal": True,
        "config": qwen3_config(LAYERS, architectures=["Qwen3DSparkModel"], block_size=7, mask_token_id=MASK_ID, target_layer_ids=[2, 0],
                               markov_rank=6, markov_head_type="vanilla", enable_confidence_head=True, dflash_config={"causal": True}),
    },
    "dspark-speculators": {
        "kind": "dspark", "taps": [0, 2], "rows": 6, "bonus_proposes": False, "causal": None,
        "config": {
            "architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark",
            "transformer_layer_config": qwen3_config(LAYERS), "draft_vocab_size": DRAFT_VOCAB, "block_size": 6,
            "aux_hidden_state_layer_ids": [1, 3], "mask_token_id": MASK_ID, "sliding_window_non_causal": False,
            "sample_from_anchor": False, "markov_rank": 6, "markov_head_type": "vanilla", "enable_confidence_head": True,
            "confidence_head_with_markov": False},
    },
}


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def turned(x, positions):
    """x [B, rows, heads, D] by positions [rows]; index i turns with i + D/2."""
    half = x.shape[-1] // 2
    angle = positions[:, None].double() * LAYERS["rope_theta"] ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        heads, own, size = LAYERS["num_attention_heads"], LAYERS["num_key_value_heads"], LAYERS["head_dim"]
        self.heads, self.own, self.size = heads, own, size
        self.q_proj = nn.Linear(HIDDEN, heads * size, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(HIDDEN, own * size, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(heads * size, HIDDEN, bias=False)
        self.q_norm, self.k_norm = Norm(size), Norm(size)

    def forward(self, rows, context, window, causal):
        """rows [B, L, H] stand after context [B, S, H]."""
        (batch, length, _), start = rows.shape, context.shape[1]
        places = torch.arange(start + length)
        both = torch.cat([context, rows], dim=1)
        q = turned(self.q_norm(self.q_proj(rows).view(batch, length, self.heads, self.size)), places[start:])
        k = turned(self.k_norm(self.k_proj(both).view(batch, -1, self.own, self.size)), places)
        v = self.v_proj(both).view(batch, -1, self.own, self.size)
        k, v = (x.repeat_interleave(self.heads // self.own, dim=2).transpose(1, 2) for x in (k, v))
        back = places[start:, None] - places[None]
        seen = torch.ones_like(back, dtype=torch.bool)
        if window:
            seen &= back < window
        if causal:
            seen &= back >= 0
        score = q.transpose(1, 2) @ k.transpose(-1, -2) * self.size ** -0.5
        weight = score.masked_fill(~seen, -torch.inf).softmax(-1)
        return self.o_proj((weight @ v).transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        inner = LAYERS["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(HIDDEN, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Convolution(nn.Module):
    def __init__(self, taps, group):
        super().__init__()
        self.taps, self.group = taps, group
        self.base_kernel = nn.Parameter(0.1 * torch.randn(2, taps, HIDDEN) + torch.eye(taps)[0][None, :, None])
        self.kernel_projection = nn.Linear(HIDDEN, 2 * taps * HIDDEN // group, bias=False)

    def around(self, rows, module):
        own = self.kernel_projection(rows).view(*rows.shape[:-1], 2, self.taps, -1)
        kernels = self.base_kernel + own.repeat_interleave(self.group, dim=-1)
        return self.one(module(self.one(rows, kernels[..., 0, :, :])), kernels[..., 1, :, :])

    def one(self, rows, kernels):
        out = torch.zeros_like(rows)
        for t in range(rows.shape[1]):
            out[:, t] = sum(kernels[:, t, j] * rows[:, t - j] for j in range(min(self.taps, t + 1)))
        return out


class Layer(nn.Module):
    def __init__(self, spec, kind):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(HIDDEN), Norm(HIDDEN)
        self.self_attn, self.mlp = Attention(), Mlp()
        self.sliding, self.causal = kind == "sliding_attention", spec["causal"]
        if spec["kind"] == "dflash2":
            inner = spec["config"]["dflash_config"]
            sizes = inner["conv_kernel_size"], inner["conv_group_size"]
            self.attention_conv, self.mlp_conv = Convolution(*sizes), Convolution(*sizes)

    def forward(self, x, context, windows):
        causal = (self.sliding if self.causal is None else self.causal) if windows else bool(self.causal)
        attend = lambda rows: self.self_attn(rows, context, WINDOW if windows and self.sliding else None, causal)  # noqa: E731
        plain = not hasattr(self, "attention_conv")
        n = self.input_layernorm(x)
        x = x + (attend(n) if plain else self.attention_conv.around(n, attend))
        n = self.post_attention_layernorm(x)
        return x + (self.mlp(n) if plain else self.mlp_conv.around(n, self.mlp))


class Selector(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.predecessor_codebook, self.successor_codebook = (nn.Parameter(torch.randn(VOCAB, rank)) for _ in range(2))
        self.hidden_projection = nn.Linear(HIDDEN, rank, bias=False)

    def edges(self, before, hidden):
        """before [...], hidden [..., H] → what each id gets [..., V]."""
        return (self.predecessor_codebook[before] * self.hidden_projection(hidden)) @ self.successor_codebook.T


class Markov(nn.Module):
    def __init__(self, rank, rows):
        super().__init__()
        self.markov_w1, self.markov_w2 = nn.Embedding(VOCAB, rank), nn.Linear(rank, rows, bias=False)


class Confidence(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, 1)


class Drafter(nn.Module):
    def __init__(self, spec, head):
        """head [V, H] is the target's."""
        super().__init__()
        self.spec, config = spec, spec["config"]
        self.fc, self.hidden_norm = nn.Linear(len(spec["taps"]) * HIDDEN, HIDDEN, bias=False), Norm(HIDDEN)
        self.layers = nn.ModuleList(Layer(spec, kind) for kind in LAYERS["layer_types"])
        self.norm = Norm(HIDDEN)
        self.ids = torch.arange(VOCAB)
        self.inner = config.get("dflash_config", {})
        if spec["kind"] == "dflash2":
            self.candidate_selector = Selector(self.inner["selector_rank"])
        elif spec["kind"] == "dspark":
            self.ids = torch.from_numpy(np.sort(np.random.default_rng(5).permutation(VOCAB)[:config.get("draft_vocab_size", VOCAB)]))
            rank = config["markov_rank"]
            self.markov_head = Markov(rank, len(self.ids))
            self.reads_pairs = config.get("confidence_head_with_markov", True)
            self.confidence_head = Confidence(HIDDEN + (rank if self.reads_pairs else 0))
        self.head = [head[self.ids]]

    def hidden(self, taps, rows, windows=True):
        """taps [B, S, n·H] of the whole context, rows [B, L, H] of the block → the rows that propose, normed."""
        context = self.hidden_norm(self.fc(taps))
        x = rows * self.inner.get("input_embedding_scale", 1.0)
        for layer in self.layers:
            x = layer(x, context, windows)
        return self.norm(x if self.spec["bonus_proposes"] else x[:, 1:])

    def logits(self, hidden):
        logits = hidden @ self.head[0].T * self.inner.get("output_multiplier", 1.0)
        cap = self.inner.get("final_logit_softcapping", self.spec["config"].get("final_logit_softcapping"))
        return cap * (logits / cap).tanh() if cap else logits

    def scores(self, hidden, before):
        """hidden [..., H] after the tokens before [...] → scores of the head's ids, all of them candidates."""
        if self.spec["kind"] == "dflash":
            return self.logits(hidden)
        if self.spec["kind"] == "dflash2":
            return self.logits(hidden) + self.candidate_selector.edges(before, hidden)
        return self.logits(hidden) + self.markov_head.markov_w2(self.markov_head.markov_w1(before))

    def confidence(self, hidden, before):
        pairs = [self.markov_head.markov_w1(before)] if self.reads_pairs else []
        return self.confidence_head.proj(torch.cat([hidden, *pairs], dim=-1))[..., 0]

    def tensors(self, embedding):
        out = dict(self.state_dict())
        if "transformer_layer_config" in self.spec["config"]:
            held = torch.zeros(VOCAB, dtype=torch.bool)
            held[self.ids] = True
            out |= {"d2t": self.ids - torch.arange(len(self.ids)), "t2d": held, "lm_head.weight": self.head[0],
                    "embed_tokens.weight": embedding}
        return out


def block_rows(target, bonus, spec):
    """bonus [B] → embeddings of the drafter's rows [B, L, H]."""
    ids = torch.full((len(bonus), spec["rows"] - spec["bonus_proposes"]), MASK_ID)
    ids[:, 0] = bonus
    return target.embed(ids)


def train(name, spec, target):
    torch.manual_seed(11)
    rng = np.random.default_rng(11)
    embedding = target.model.model.embed_tokens.weight.detach()
    drafter = spec.get("class", Drafter)(spec, embedding)
    proposed = spec["rows"] - 1
    weight = torch.exp(-torch.arange(proposed) / 5.0)
    row_of = torch.full((VOCAB,), -100)
    row_of[drafter.ids] = torch.arange(len(drafter.ids))

    def loss(_):
        length = int(rng.integers(1, 100))
        ids = torch.from_numpy(sentences(rng, 32, length + spec["rows"]))
        with torch.no_grad():
            target.past = None
            taps = target.forward(ids[:, :length])[1]
            rows = block_rows(target, ids[:, length], spec)
        hidden = drafter.hidden(taps, rows)
        before, after = ids[:, length:-1], row_of[ids[:, length + 1:]]
        scores = drafter.scores(hidden, before)
        each = F.cross_entropy(scores.transpose(1, 2), after, reduction="none", ignore_index=-100)
        if spec["kind"] == "dflash2":
            each = each + F.cross_entropy(drafter.logits(hidden).transpose(1, 2), after, reduction="none")
        elif spec["kind"] == "dspark":
            right = (scores.argmax(-1) == after).float()
            each = each + F.binary_cross_entropy_with_logits(drafter.confidence(hidden, before), right, reduction="none")
        return (each * weight).mean()

    last = fit(list(drafter.parameters()), 450, loss)
    write(HERE / name, spec["config"], drafter.tensors(embedding))
    print(f"{name}: last loss {last:.3f}")
    return drafter.eval()


def draft(drafter, hidden, bonus, rule, start):
    """Drafts of hidden rows [P, H] after the bonus token at position start: (ids, margins, logarithms of P(reached))."""
    before, ids, margins, reached = bonus, [], [], []
    for at, row in enumerate(hidden):
        token = torch.tensor(before)
        scores = np.full(VOCAB, -np.inf)
        scores[drafter.ids] = drafter.scores(row, token).double().numpy()
        edge = np.inf
        if drafter.spec["kind"] == "dflash2":
            k = drafter.inner["selector_top_k"]
            logits = drafter.logits(row).double().numpy()
            order = np.argsort(-logits)
            scores[order[k:]] = -np.inf
            edge = logits[order[k - 1]] - logits[order[k]]
        elif drafter.spec["kind"] == "dspark":
            p = drafter.confidence(row, token).sigmoid().item()
            reached.append((reached[-1] if reached else 1.0) * p)
        before, _, margin = choose({**rule, "position": start + 1 + at}, scores)
        ids.append(before)
        margins.append(float(min(margin, edge)))
    return ids, margins, reached


def run(target, drafter, prompt, rule):
    """A drafted run: (ids after the prompt, cycles)."""
    from transformers import DynamicCache

    spec, cycles = drafter.spec, []
    pick = lambda logits, position: choose({**rule, "position": position}, logits.double().numpy())  # noqa: E731
    with torch.inference_mode():
        target.past = DynamicCache()
        logits, taps = target.forward(torch.tensor([prompt]))
        start, out = len(prompt), [pick(logits[0, -1], len(prompt))[0]]
        for _ in range(CYCLES):
            hidden = drafter.hidden(taps, block_rows(target, torch.tensor(out[-1:]), spec))[0]
            ids, margins, reached = draft(drafter, hidden, out[-1], rule, start)
            kept = next((i for i, p in enumerate(reached) if p < LEAST_CONFIDENCE), len(ids))
            ids = ids[:kept]
            logits, new = target.forward(torch.tensor([[out[-1], *ids]]))
            chosen = [pick(row, start + 1 + i) for i, row in enumerate(logits[0])]
            accepted = next((i for i, d in enumerate(ids) if d != chosen[i][0]), len(ids))
            # How far the end of the block is from another place, and each choice from another one.
            ends = [abs(p - LEAST_CONFIDENCE) for p in reached[:kept + 1]]
            cycles.append({"drafted": ids, "accepted": accepted, "chosen": [token for token, *_ in chosen[:accepted + 1]],
                           "draft_margins": [round(min(m, 99.0), 6) for m in margins[:kept]],
                           "end_margins": [round(m, 6) for m in ends],
                           "target_margins": [round(min(m, 99.0), 6) for *_, m in chosen[:accepted + 1]]})
            out += cycles[-1]["chosen"]
            start += accepted + 1
            crop(target.past, start)
            taps = torch.cat([taps, new[:, :accepted + 1]], dim=1)
        return out, cycles


def compare_with_mlx_vlm(name, drafter, target):
    """Greedy drafts and confidences of the published implementation, all layers full and with its one rule of causality."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    spec = drafter.spec
    config = json.loads(json.dumps(spec["config"]))
    if "transformer_layer_config" in config:
        return False  # mlx-vlm reads no file of this layout.
    config |= {"layer_types": ["full_attention"] * len(LAYERS["layer_types"]), "sliding_window": None}
    config.setdefault("dflash_config", {})
    config["dflash_config"] |= {"target_layer_ids": sorted(spec["taps"]), "mask_token_id": MASK_ID, "num_target_layers": spec.get("of", 3)}
    if spec["kind"] == "dflash2":
        from mlx_vlm.speculative.drafters.dflash2.config import DFlash2Config as Config
        from mlx_vlm.speculative.drafters.dflash2.dflash2 import DFlash2DraftModel as Model
    elif spec["kind"] == "dflash":
        from mlx_vlm.speculative.drafters.qwen3_dflash.config import DFlashConfig as Config
        from mlx_vlm.speculative.drafters.qwen3_dflash.dflash import DFlashDraftModel as Model
    else:
        from mlx_vlm.speculative.drafters.dspark.config import DSparkConfig as Config
        from mlx_vlm.speculative.drafters.dspark.dspark import DSparkDraftModel as Model
    model = Model(Config.from_dict(config))
    weights = mx.load(str(HERE / name / "model.safetensors"))
    model.load_weights(list(model.sanitize(weights).items()))
    table = mx.array(target.embed(torch.arange(VOCAB)).detach().numpy())
    head = mx.array(target.model.model.embed_tokens.weight.detach().numpy())
    model.embed_tokens, model.lm_head = (lambda ids: table[ids]), (lambda rows: rows @ head.T)
    rng = np.random.default_rng(17)
    with torch.inference_mode():
        for length in (1, 30, 90):
            ids = sentences(rng, 1, max(length, 2) + 1)[0, -length - 1:].tolist()
            target.past = None
            taps = target.forward(torch.tensor([ids[:-1]]))[1]
            hidden = drafter.hidden(taps, block_rows(target, torch.tensor(ids[-1:]), spec), windows=False)[0]
            own, margins, _ = draft(drafter, hidden, ids[-1], RULES["greedy"], length)
            states = mx.array(taps.numpy())
            rows = spec["rows"] - spec["bonus_proposes"]
            block = mx.array([[ids[-1]] + [MASK_ID] * (rows - 1)])
            found = np.array(model._hidden(block, states, model.make_cache()))[0]
            found = found if spec["bonus_proposes"] else found[1:]
            worst = np.abs(found - hidden.numpy()).max()
            assert worst < 1e-3, (name, length, worst)
            greedy = lambda scores: mx.argmax(scores, axis=-1)  # noqa: E731
            theirs = model.draft_block(ids[-1], states, model.make_cache(), spec["rows"], greedy)[0].tolist()
            decided = next((i for i, m in enumerate(margins) if m < UNDECIDED), len(margins))
            assert theirs[:decided] == own[:decided], (name, length, theirs, own)
            if spec["kind"] == "dspark":
                sure = np.array(model.confidence(mx.array(found)[None], mx.array([ids[-1]]), mx.array([own])))[0]
                before = torch.tensor([ids[-1], *own[:-1]])
                assert np.abs(sure - drafter.confidence(hidden, before).sigmoid().numpy()).max() < 1e-4
    return True


def compare_with_speculators(drafter):
    """The heads of DSpark's other publisher."""
    # The file alone: the package's own imports are those of its training.
    file = Path(find_spec("speculators").origin).parent / "models" / "dspark" / "model_definitions.py"
    published = spec_from_file_location("published_heads", file)
    heads = module_from_spec(published)
    published.loader.exec_module(heads)
    rank, ids = drafter.spec["config"]["markov_rank"], torch.arange(VOCAB)
    markov = heads.MarkovHead(verifier_vocab_size=VOCAB, draft_vocab_size=len(drafter.ids), markov_rank=rank, hidden_size=HIDDEN)
    markov.load_state_dict(drafter.markov_head.state_dict())
    confidence = heads.ConfidenceHead(HIDDEN + (rank if drafter.reads_pairs else 0))
    confidence.load_state_dict(drafter.confidence_head.state_dict())
    hidden = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        bias = markov.block_bias(prev_token_ids=ids[None], hidden_states=hidden[None])[0]
        assert (drafter.logits(hidden) + bias - drafter.scores(hidden, ids)).abs().max() < 1e-4
        pairs = [markov.prev_embeddings(ids)] if drafter.reads_pairs else []
        assert (confidence(torch.cat([hidden, *pairs], dim=-1)) - drafter.confidence(hidden, ids)).abs().max() < 1e-4


def make_draft_tokens():
    torch.set_num_threads(1)
    for name, spec in PAIRS.items():
        target = Target(load_reference(HERE / "dflash-target"), spec["taps"])
        drafter = train(name, spec, target)
        checks = []
        if spec["kind"] == "dspark":
            compare_with_speculators(drafter)
            checks.append("heads within 1e-4 of speculators")
        # mlx-vlm wants the taps in ascending order, as numbers alone: their order is that of fc's inputs.
        if compare_with_mlx_vlm(name, drafter, target):
            checks.append("hidden rows within 1e-3 of mlx-vlm with all layers full, and its greedy drafts")
        rng = np.random.default_rng(3)
        runs = []
        for rule_name, rule in RULES.items():
            for length in PROMPT_LENGTHS:
                prompt = sentences(rng, 1, max(length, 2))[0, -length:].tolist()
                ids, cycles = run(target, drafter, prompt, rule)
                runs.append({"rule": rule_name, "prompt": prompt, "ids": ids, "cycles": cycles})
                print(f"{name}, {rule_name}, prompt of {length}: accepted {[c['accepted'] for c in cycles]} of "
                      f"{[len(c['drafted']) for c in cycles]}")
        counts = [c["accepted"] for case in runs for c in case["cycles"]]
        assert any(0 < c < spec["rows"] - 1 for c in counts) and 0 in counts
        packages = {package: metadata.version(package) for package in ("mlx-vlm", "mlx", "mlx-lm", "speculators")}
        dump(HERE / f"{name}.json", {
            "provenance": provenance("draft_tokens", **reference_versions(), **packages),
            "target": "models/tests/golden/dflash-target",
            "drafter": f"models/tests/golden/{name}",
            "reference": ["plain torch loop, draft_tokens.py", *checks],
            "arithmetic": "float32; choices in float64; processor: CPU",
            "meaning": {
                "ids": "ids after the prompt: the first by prefill, then each cycle's chosen ones",
                "cycles": "drafted ids, how many of them were accepted, the target's choices up to the first that is no draft; margins: "
                          "distance of each draft, of the block's end at each draft (distance of the probability of reaching it from "
                          "the least one) and of each of the target's choices from another outcome",
            },
            "undecided": UNDECIDED,
            "rows": spec["rows"],
            "rules": RULES,
            "cases": runs,
        })
