"""Golden files of the heads with which Qwen3.5 predicts the token after the next (kind `mtp`).

Part of make.py: `python models/tests/golden/make.py mtp`. The language and the helpers are draft.py's, the loop is that of chains.py.
Targets are tiny, of a layer with states and one that attends, trained here in transformers. A head is trained here, too: its layer is
transformers' own, and around it stand the norms and the projection as vLLM's qwen3_5_mtp.py and mlx-vlm have them. It drafts without
a cache, by a forward over all rows for each draft. Two pairs:

    mtp-dense   one checkpoint in the layout of transformers, with the head in it; tied
    mtp-moe     a head with experts in a folder of its own, as mlx-vlm's split writes it, and its target mtp-moe-target; untied

mlx-vlm's own class of such heads runs beside the loop with its cache, and must agree. It is installed for this part alone:

    pip install --no-deps mlx-vlm==0.7.10
    pip install mlx-lm==0.32.2            (on Linux also mlx-cpu)
"""

import json
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import hybrid
from chains import SAMPLING, cases_of, drafted_run, pick
from draft import UNDECIDED, VOCAB, Target, fit, sentences
from make import HERE, dump, provenance, reference_versions

# Rows of the blocks of the cycles, in turn; at most those of models/src/draft/mtp.rs.
BLOCKS = [4, 3, 2, 4]
# Drafts of a row that a head is trained for.
STEPS = 3
# Inputs of whole groups of 64, so that most matrices can be quantized.
SIZES = {**hybrid.TEXT, "vocab_size": VOCAB, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
         "linear_num_key_heads": 1, "num_hidden_layers": 2, "linear_num_value_heads": 2,
         "layer_types": ["linear_attention", "full_attention"], "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
         "dtype": "bfloat16"}
# name: (model_type, tied, config, folder of the target)
PAIRS = {
    "mtp-dense": ("qwen3_5", True, {**SIZES, "intermediate_size": 64}, "mtp-dense"),
    "mtp-moe": ("qwen3_5_moe", False, {**SIZES, **hybrid.MOE}, "mtp-moe-target"),
}
# A predictable text hides small faults of a head. So there are also texts of random ids, with choices so hot that small differences of
# logits change them.
HOT = {**SAMPLING, "temperature": 2.5}
RANDOM_LENGTHS = [5, 24, 60]
TEXT_PREFIX = "model.language_model."


def rounded(weights):
    """As published checkpoints are stored."""
    wide = ("A_log", "linear_attn.norm.weight")
    return {name: (w if name.endswith(wide) else w.to(torch.bfloat16)).detach().contiguous() for name, w in weights.items()}


def train_target(model_type, tied, config, seed):
    """→ tensors of the text model in the layout of transformers, rounded."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    start = hybrid.random_weights(config, tied, seed)
    model = hybrid.load_reference(model_type, tied, config, start).train()
    for name, w in model.named_parameters():
        # hybrid.py's weights are large, so that answers vary; these are to be trained.
        if w.dim() > 1:
            w.data.mul_(0.5)

    def loss(_):
        ids = torch.from_numpy(sentences(rng, 16, 96))
        return F.cross_entropy(model(ids, use_cache=False).logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1))

    print(f"{model_type}: last loss of the target {fit(list(model.parameters()), 500, loss):.3f}")
    named = {name.replace("model.", TEXT_PREFIX, 1): w for name, w in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    return rounded(named)


class Head(nn.Module):
    """One layer of the family over rows of (token, hidden state), with the target's embedding and head."""

    def __init__(self, target):
        super().__init__()
        inner = target.model.model
        config, kind = inner.config, type(inner.layers[0])
        size, norm = config.hidden_size, type(inner.norm)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (norm(size, eps=config.rms_norm_eps) for _ in range(3))
        self.layers = nn.ModuleList([kind(config, config.layer_types.index("full_attention"))])
        # Not parts of the head.
        self.around = [target, inner.rotary_emb]

    def inputs(self, ids, hidden):
        """ids [B, T], hidden [B, T, H] → the layer's input [B, T, H]."""
        embedding = self.around[0].embed(ids)
        return self.fc(torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], dim=-1))

    def outputs(self, rows, positions, seen):
        """rows [B, T, H] at positions [T]; seen [T, T]: whether a row (first) reads another one → [B, T, H] after the norm."""
        places = positions[None, None].expand(3, len(rows), -1)
        mask = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[None, None].expand(len(rows), 1, -1, -1)
        out = self.layers[0](rows, position_embeddings=self.around[1](rows, places), attention_mask=mask, position_ids=places[0])
        return self.norm(out[0] if isinstance(out, tuple) else out)

    def logits(self, outputs):
        return self.around[0].head(outputs)


def states(target, ids):
    """Hidden states of the target after its final norm [B, T, H]."""
    with torch.no_grad():
        target.past = None
        return target.model.model.norm(target.forward(ids)[1])


def train_head(target, seed):
    """Each row drafts STEPS tokens: a later row reads the rows of the first step up to its own, and its own of the steps between."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    head = Head(target)
    with torch.no_grad():
        for w in head.parameters():
            w.copy_(torch.zeros(w.shape) if w.dim() == 1 else torch.randn(w.shape) / w.shape[-1] ** 0.5)

    def loss(_):
        ids = torch.from_numpy(sentences(rng, 16, 80))
        T = ids.shape[1] - STEPS - 1
        hidden, rows, total = states(target, ids)[:, :T], [], 0.0
        step_of, row_of = torch.arange(STEPS * T) // T, torch.arange(STEPS * T) % T
        earlier = (step_of[None] == 0) & (row_of[None] <= row_of[:, None])
        own = (step_of[None] <= step_of[:, None]) & (row_of[None] == row_of[:, None])
        for step in range(STEPS):
            rows.append(head.inputs(ids[:, 1 + step:1 + step + T], hidden))
            count = (step + 1) * T
            seen = (earlier | own)[:count, :count]
            hidden = head.outputs(torch.cat(rows, dim=1), (step_of + row_of)[:count], seen)[:, -T:]
            after = ids[:, 2 + step:2 + step + T]
            total = total + 0.7 ** step * F.cross_entropy(head.logits(hidden).transpose(1, 2), after)
        return total

    print(f"last loss of the head {fit(list(head.parameters()), 350, loss):.3f}")
    return head


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


def head_draft(head, target, beside):
    """Drafts; `beside(ids, hidden, drafted)` gives the logits of another implementation, which must agree."""

    def draft(ids, count, sampling):
        drafted, margins = [], []
        with torch.inference_mode():
            hidden = states(target, torch.tensor([ids[:-1]]))
            rows = head.inputs(torch.tensor([ids[1:]]), hidden)
            for _ in range(count):
                length = rows.shape[1]
                out = head.outputs(rows, torch.arange(length), causal(length))[:, -1:]
                logits = head.logits(out)[0, 0].numpy()
                off = np.abs(beside(ids, hidden, drafted) - logits).max()
                assert off < 2e-3, f"mlx-vlm agrees: {off}"
                token, margin = pick(logits, len(ids) + len(drafted), sampling)
                drafted.append(token)
                margins.append(margin)
                rows = torch.cat([rows, head.inputs(torch.tensor([[token]]), out)], dim=1)
        return drafted, margins

    return draft


def mlx_vlm(name, tied, target):
    """mlx-vlm's class, which reads the head as it is stored in `name` → logits after a context and drafts."""
    import mlx.core as mx
    from mlx_vlm.speculative.drafters.qwen3_5_mtp import Model, ModelConfig

    mx.set_default_device(mx.cpu)
    stored = mx.load(str(HERE / name / "model.safetensors"))
    text = json.loads((HERE / name / "config.json").read_text())["text_config"]
    inside = any(key.startswith("mtp.") for key in stored)
    own = {key: w.astype(mx.float32) for key, w in stored.items() if key.startswith("mtp.") or not inside}
    model = Model(ModelConfig.from_dict({"text_config": {**text, "tie_word_embeddings": tied}}))
    model.load_weights(list(model.sanitize(own).items()))
    ends = {part: mx.array(module.weight.detach().numpy()) for part, module in
            (("embed", target.model.model.embed_tokens), ("head", target.model.lm_head))}
    around = SimpleNamespace(embed_tokens=lambda ids: ends["embed"][ids], lm_head=lambda rows: rows @ ends["head"].T)

    def beside(ids, hidden, drafted):
        model.reset(around)
        out = model._forward_tokens(mx.array([ids[1:]]), mx.array(hidden.numpy()), mx.int32)[:, -1:]
        for token in drafted:
            out = model._forward_tokens(mx.array([[token]]), out, mx.int32)
        return np.array(around.lm_head(out)[0, 0])

    return beside


def split(source, folder):
    """mlx-vlm's own split of a checkpoint."""
    from mlx_vlm.speculative.drafters.qwen3_5_mtp.split import Qwen3_5MTPSplitter

    shutil.rmtree(folder, ignore_errors=True)
    Qwen3_5MTPSplitter().split(str(source), str(folder))
    (folder / "model.safetensors").chmod(0o644)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def make_one(name, model_type, tied, config, target_name):
    weights = train_target(model_type, tied, config, 21)
    model = hybrid.load_reference(model_type, tied, config, weights)
    target = Target(model.requires_grad_(False), [config["num_hidden_layers"] - 1])
    head = train_head(target, 22)
    own = rounded({f"mtp.{part}": w for part, w in head.state_dict().items()})
    head.load_state_dict({part.removeprefix("mtp."): w.float() for part, w in own.items()})
    head.eval()
    shutil.rmtree(HERE / target_name, ignore_errors=True)
    if name == target_name:
        hybrid.write_checkpoint(HERE / name, model_type, tied, config, {**weights, **own})
    else:
        hybrid.write_checkpoint(HERE / target_name, model_type, tied, config, weights)
        with tempfile.TemporaryDirectory() as whole:
            hybrid.write_checkpoint(Path(whole), model_type, tied, config, {**weights, **own})
            split(whole, HERE / name)
        # The split adds 1 to the norms and rounds them again.
        stored = load_file(HERE / name / "model.safetensors")
        norms = {part: stored[part].float() - 1.0 for part, w in head.state_dict().items() if w.dim() == 1}
        head.load_state_dict(norms, strict=False)
    draft = head_draft(head, target, mlx_vlm(name, tied, target))
    cases = cases_of(model, draft, BLOCKS)
    rng = np.random.default_rng(4)
    for length in RANDOM_LENGTHS:
        prompt = rng.integers(0, VOCAB, length).tolist()
        out, cycles = drafted_run(model, draft, prompt, BLOCKS, HOT)
        cases.append({"prompt": prompt, "temperature": HOT["temperature"], "out": out, "cycles": cycles})
        print(f"  {length} random ids: accepted {[c['accepted'] for c in cycles]}")
    versions = {package: metadata.version(package) for package in ("mlx", "mlx-lm", "mlx-vlm")}
    dump(HERE / f"{name}.json", {
        "provenance": provenance("mtp", **reference_versions(), **versions),
        "target": f"models/tests/golden/{target_name}",
        "drafter": f"models/tests/golden/{name}",
        "reference": "torch loop of mtp.py around transformers' own layer; logits of every draft within 2e-3 of mlx-vlm's qwen3_5_mtp",
        "arithmetic": "weights stored as bfloat16, widened to float32; choices in float64; processor: CPU",
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


def make_mtp():
    torch.set_num_threads(1)
    for name, parts in PAIRS.items():
        make_one(name, *parts)
