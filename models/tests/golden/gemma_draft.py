"""Golden files of DFlash and DSpark drafters whose target is a Gemma 4.

Part of make.py: `python models/tests/golden/make.py gemma_draft`. It needs the packages of draft_tokens.py, whose training and loop these
are, and the published implementations of the two drafters:

    pip install dflash-mlx==0.1.8
    git clone https://github.com/deepseek-ai/DeepSpec && git -C DeepSpec checkout afdfa7c9382a3341a3e6f17756dd816da79f132c    (on PYTHONPATH)

The target and the drafters are trained here on the language of draft.py. The target is a dense Gemma 4 whose window is shorter than most
prompts and whose head has a cap that changes what is sampled. The root of its hidden size is no number of 16 bits, and its weights are
stored in float32, so that the factor on embeddings is not rounded. The DSpark drafter has Gemma's layers, an embedding and a head of its
own, as published; mlx-vlm 0.7.10 leaves out the norm of its values, so DeepSpec, which published it, is the reference.
"""

from importlib import metadata

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import draft_tokens
from draft import MASK_ID, PROMPT_LENGTHS, UNDECIDED, VOCAB, MlxDrafter, fit, qwen3_config, sentences, write
from draft_tokens import LAYERS, Drafter, Norm, block_rows, compare_with_mlx_vlm, draft, run, train
from hybrid_draft import Uncached, first_hidden
from make import HERE, dump, load_reference, provenance, reference_versions

DEEPSPEC_COMMIT = "afdfa7c9382a3341a3e6f17756dd816da79f132c"
TARGET = "gemma4-draft-target"
HIDDEN, CAP, EPS = 32, 9.0, 1e-6
KINDS = {"s": "sliding_attention", "f": "full_attention"}
ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}}
TEXT = {"model_type": "gemma4_text", "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_attention_heads": 2, "num_key_value_heads": 1,
        "num_global_key_value_heads": 1, "head_dim": 8, "global_head_dim": 16, "attention_k_eq_v": True, "hidden_activation":
        "gelu_pytorch_tanh", "rms_norm_eps": EPS, "attention_bias": False, "attention_dropout": 0.0, "final_logit_softcapping": CAP,
        "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "enable_moe_block": False, "hidden_size_per_layer_input": 0,
        "max_position_embeddings": 512, "rope_parameters": ROPE, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
        "dtype": "float32"}
LAYERS_OF_TARGET = "sssfssf"
TARGET_CONFIG = {**TEXT, "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": len(LAYERS_OF_TARGET),
                 "layer_types": [KINDS[kind] for kind in LAYERS_OF_TARGET], "sliding_window": 24, "intermediate_size": 40,
                 "tie_word_embeddings": True}
# As the published drafters: two layers of a window that is causal in the block, then a full one; the key of the cap at the top.
LAYERS |= {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
TAPS = [0, 1, 2, 3, 5, 6]
# With a cap many ids are nearly as probable as others, and the edge of top-p would be undecided too often.
RULES = {**draft_tokens.RULES, "sampled": {**draft_tokens.RULES["sampled"], "top_p": 1.0, "min_p": 0.02}}


def normed(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


class GemmaAttention(nn.Module):
    """A full layer's: the keys' projections, normed without a weight, are its values."""

    def __init__(self):
        super().__init__()
        self.heads, self.size = TEXT["num_attention_heads"], TEXT["global_head_dim"]
        self.q_proj = nn.Linear(HIDDEN, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(HIDDEN, TEXT["num_global_key_value_heads"] * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, HIDDEN, bias=False)
        self.q_norm, self.k_norm = Norm(self.size), Norm(self.size)

    def turned(self, x, places):
        """x [B, rows, heads, D]: the first quarter of the pairs (i, i + D/2) turns."""
        half, rope = self.size // 2, ROPE["full_attention"]
        frequencies = rope["rope_theta"] ** (-torch.arange(half).double() / half)
        frequencies[int(rope["partial_rotary_factor"] * half):] = 0.0
        angle = places[:, None].double() * frequencies
        cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def forward(self, rows, context):
        """rows [B, L, H] stand after context [B, S, H], and attend to all of both."""
        batch, length, _ = rows.shape
        both = torch.cat([context, rows], dim=1)
        places = torch.arange(both.shape[1])
        q = self.q_norm(self.q_proj(rows).view(batch, length, self.heads, self.size))
        projected = self.k_proj(both).view(batch, len(places), -1, self.size)
        q, k = self.turned(q, places[-length:]), self.turned(self.k_norm(projected), places)
        k, v = (x.repeat_interleave(self.heads // x.shape[2], dim=2).transpose(1, 2) for x in (k, normed(projected)))
        weight = (q.transpose(1, 2) @ k.transpose(-1, -2)).softmax(-1)
        return self.o_proj((weight @ v).transpose(1, 2).reshape(batch, length, -1))


class GemmaMlp(draft_tokens.Mlp):
    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class GemmaLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(HIDDEN), Norm(HIDDEN)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = Norm(HIDDEN), Norm(HIDDEN)
        self.self_attn, self.mlp = GemmaAttention(), GemmaMlp()
        self.layer_scalar = nn.Parameter(torch.tensor([0.9]))

    def forward(self, x, context, _windows):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), context))
        return (x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))) * self.layer_scalar


class GemmaDSpark(Drafter):
    def __init__(self, spec, head):
        super().__init__(spec, head)
        self.layers = nn.ModuleList(GemmaLayer() for _ in range(spec["config"]["num_hidden_layers"]))
        # Its own, which begins as the target's.
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.lm_head.weight.data.copy_(head)

    def logits(self, hidden):
        return CAP * (self.lm_head(hidden) / CAP).tanh()

    def tensors(self, embedding):
        return {**self.state_dict(), "embed_tokens.weight": embedding}


PAIRS = {
    "dflash-gemma4": {
        "kind": "dflash", "taps": TAPS, "rows": 8, "bonus_proposes": False, "causal": None, "of": len(LAYERS_OF_TARGET),
        "config": qwen3_config(LAYERS, architectures=["DFlashDraftModel"], block_size=8, num_target_layers=len(LAYERS_OF_TARGET),
                               final_logit_softcapping=CAP, tie_word_embeddings=False,
                               dflash_config={"mask_token_id": MASK_ID, "target_layer_ids": TAPS}),
    },
    # The keys of its target's config that its layers do not use are there, as published.
    "dspark-gemma4": {
        "kind": "dspark", "class": GemmaDSpark, "taps": [1, 3, 5], "rows": 8, "bonus_proposes": True, "causal": None,
        "config": {**TEXT, "architectures": ["Gemma4DSparkModel"], "target_model_type": "gemma4_unified", "num_hidden_layers": 2,
                   "layer_types": ["full_attention"] * 2, "sliding_window": 24, "intermediate_size": LAYERS["intermediate_size"],
                   "tie_word_embeddings": False, "num_target_layers": len(LAYERS_OF_TARGET), "block_size": 7, "num_anchors": 4,
                   "mask_token_id": MASK_ID, "target_layer_ids": [1, 3, 5], "markov_rank": 6, "markov_head_type": "vanilla",
                   "enable_confidence_head": True, "confidence_head_with_markov": True},
    },
}


def train_target():
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**TARGET_CONFIG, attn_implementation="eager"))

    def loss(_):
        ids = torch.from_numpy(sentences(rng, 16, 112))
        return F.cross_entropy(model(ids).logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1))

    # Training would keep them at 1: other factors show that hidden states are read after them.
    for i, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.8 + 0.05 * i)
    last = fit(list(model.parameters()), 700, loss)
    kept = {name: w for name, w in model.state_dict().items() if name != "lm_head.weight"}
    write(HERE / TARGET, TARGET_CONFIG, kept)
    print(f"{TARGET}: last loss {last:.3f}")


def load_target(taps):
    return Uncached(load_reference(HERE / TARGET).requires_grad_(False), taps)


def compare_with_dflash_mlx(name, drafter, target):
    """Hidden rows, the second of two blocks after a context that grew."""
    rng = np.random.default_rng(17)
    with torch.inference_mode():
        for length in (1, 30, 90):
            ids = sentences(rng, 1, length + 4)[0].tolist()
            target.past = None
            taps = target.forward(torch.tensor([ids]))[1][0]
            published = MlxDrafter(HERE / name)
            for before, end in ((0, length), (length, length + 3)):
                rows = block_rows(target, torch.tensor(ids[end:end + 1]), drafter.spec)
                found = published.hidden(taps[before:end], rows[0], end)
                worst = (found - drafter.hidden(taps[None, :end], rows)[0]).abs().max()
                assert worst < 1e-3, (name, length, worst)


def compare_with_deepspec(drafter, target):
    """Hidden rows, greedy drafts and confidences of the published implementation."""
    from deepspec.modeling.dspark.gemma4 import modeling
    from safetensors.torch import load_file
    from transformers import Gemma4TextConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding

    config = Gemma4TextConfig(**drafter.spec["config"])
    # It was written for an older transformers, whose rotations are of one kind and whose config keeps these keys.
    modeling.Gemma4TextRotaryEmbedding = lambda config, layer_type: Gemma4TextRotaryEmbedding(config)
    for key in ("global_head_dim", "num_global_key_value_heads"):
        setattr(config, key, TEXT[key])
    config._attn_implementation = "sdpa"
    model = modeling.Gemma4DSparkModel(config).eval()
    model.load_state_dict(load_file(HERE / "dspark-gemma4" / "model.safetensors"))
    rng = np.random.default_rng(17)
    with torch.inference_mode():
        for length in (1, 30, 90):
            ids = sentences(rng, 1, max(length, 2) + 1)[0, -length - 1:].tolist()
            target.past = None
            taps = target.forward(torch.tensor([ids[:-1]]))[1]
            block = torch.tensor([[ids[-1]] + [MASK_ID] * (drafter.spec["rows"] - 2)])
            theirs = model._forward_backbone(position_ids=torch.arange(length + block.shape[1])[None], target_hidden_states=taps,
                                             noise_embedding=model.embed_tokens(block))
            rows = block_rows(target, torch.tensor(ids[-1:]), drafter.spec)
            own = drafter.hidden(taps, rows)
            assert (own - theirs).abs().max() < 1e-3, (length, (own - theirs).abs().max())
            drafted, margins, _ = draft(drafter, own[0], ids[-1], RULES["greedy"], length)
            found, _ = model.sample_draft_tokens(model.compute_logits(theirs), first_prev_token_ids=torch.tensor(ids[-1:]))
            decided = next((i for i, m in enumerate(margins) if m < UNDECIDED), len(margins))
            assert found[0, :decided].tolist() == drafted[:decided]
            before = torch.tensor([[ids[-1], *drafted[:-1]]])
            sure = model.predict_confidence_step(theirs, before)
            assert (sure - drafter.confidence(own, before)).abs().max() < 1e-3


def make_pair(name, spec):
    target = load_target(spec["taps"])
    drafter = train(name, spec, target)
    if spec["kind"] == "dflash":
        assert compare_with_mlx_vlm(name, drafter, target)
        compare_with_dflash_mlx(name, drafter, target)
        checks = ["hidden rows within 1e-3 of mlx-vlm with all layers full, and its greedy drafts",
                  "hidden rows within 1e-3 of dflash-mlx"]
    else:
        compare_with_deepspec(drafter, target)
        checks = ["hidden rows within 1e-3 of DeepSpec, its greedy drafts and confidences"]
    rng = np.random.default_rng(3)
    runs = []
    for rule_name, rule in RULES.items():
        for length in PROMPT_LENGTHS:
            prompt = sentences(rng, 1, max(length, 2))[0, -length:].tolist()
            ids, cycles = run(target, drafter, prompt, rule)
            case = {"rule": rule_name, "prompt": prompt, "ids": ids, "cycles": cycles}
            if spec["kind"] == "dflash":
                case["first_hidden"] = first_hidden(target, drafter, prompt, ids[0])
            runs.append(case)
            print(f"{name}, {rule_name}, prompt of {length}: accepted {[c['accepted'] for c in cycles]} of "
                  f"{[len(c['drafted']) for c in cycles]}")
    counts = [c["accepted"] for case in runs for c in case["cycles"]]
    assert any(0 < c < spec["rows"] - 1 for c in counts) and 0 in counts
    packages = {package: metadata.version(package) for package in ("mlx-vlm", "dflash-mlx", "mlx", "mlx-lm")}
    dump(HERE / f"{name}.json", {
        "provenance": provenance("gemma_draft", **reference_versions(), **packages, **{"deepseek-ai/DeepSpec": DEEPSPEC_COMMIT}),
        "target": f"models/tests/golden/{TARGET}",
        "drafter": f"models/tests/golden/{name}",
        "reference": ["plain torch loop, draft_tokens.py", *checks],
        "arithmetic": "float32; choices in float64; processor: CPU",
        "meaning": {
            "ids": "ids after the prompt: the first by prefill, then each cycle's chosen ones",
            "first_hidden": "the first cycle's hidden rows 1.. after the final norm, row by row",
            "cycles": "drafted ids, how many of them were accepted, the target's choices up to the first that is no draft; margins: "
                      "distance of each draft, of the block's end at each draft (distance of the probability of reaching it from "
                      "the least one) and of each of the target's choices from another outcome",
        },
        "undecided": UNDECIDED,
        "rows": spec["rows"],
        "rules": RULES,
        "cases": runs,
    })


def make_gemma_draft():
    torch.set_num_threads(1)
    train_target()
    for name, spec in PAIRS.items():
        make_pair(name, spec)
