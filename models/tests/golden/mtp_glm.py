"""Golden file of the layer with which GLM-OCR predicts the token after the next (kind `mtp`): mtp-glm.json.

Part of make.py: `python models/tests/golden/make.py mtp_glm`, after `glm_vision`, whose checkpoint `glm-ocr-tiny` has the layer. Its
weights are random, so drafts are hardly ever accepted. The layer is transformers' own. Around it stand the norms and the projection as
vLLM's glm_ocr_mtp.py has them. It drafts without a cache, by a forward over all rows for each draft.
"""

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

import glm_vision
from chains import SAMPLING, drafted_run, pick
from draft import UNDECIDED
from glm_vision import VOCAB
from hybrid_vision import load
from make import HERE, dump, provenance, reference_versions

NAME = "glm-ocr-tiny"
# Rows of the blocks of the cycles, in turn; at most those of models/src/draft/mtp.rs.
BLOCKS = [4, 3, 2, 4]
# Choices so hot that small differences of logits change them.
HOT = {**SAMPLING, "temperature": 2.5}
LENGTHS = [2, 9, 40]
# Ids that a sampled draft is chosen from: models/src/sample/propose.rs.
CANDIDATES = 64


class Layer(nn.Module):
    """One layer of the family over rows of (token, hidden state), with the target's embedding and head."""

    def __init__(self, model):
        super().__init__()
        text = model.model.language_model
        config, size, norm = text.config, text.config.hidden_size, type(text.norm)
        self.enorm, self.hnorm, self.head_norm = (norm(size, eps=config.rms_norm_eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.block = type(text.layers[0])(config, 0)
        # Not parts of the layer.
        self.around = [text, model.lm_head]

    def inputs(self, ids, hidden, first):
        """ids and hidden of rows from position `first` on → [1, T, H]."""
        embedding = self.around[0].embed_tokens(torch.tensor([ids])).clone()
        if first == 0:
            embedding[:, 0] = 0
        return self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(hidden)], dim=-1))

    def outputs(self, rows):
        places = torch.arange(rows.shape[1])[None, None].expand(3, 1, -1)
        mask = torch.full((rows.shape[1], rows.shape[1]), float("-inf")).triu(1)[None, None]
        out = self.block(rows, position_embeddings=self.around[0].rotary_emb(rows, places), attention_mask=mask)
        return out[0] if isinstance(out, tuple) else out

    def logits(self, out):
        return self.around[1](self.head_norm(out))


def drafter(model, layer):
    def draft(ids, count, sampling):
        drafted, margins = [], []
        with torch.inference_mode():
            hidden = model.model.language_model(torch.tensor([ids[:-1]]), use_cache=False).last_hidden_state
            rows = layer.inputs(ids[1:], hidden, 0)
            for _ in range(count):
                out = layer.outputs(rows)[:, -1:]
                logits = layer.logits(out)[0, 0].numpy()
                if sampling:
                    logits[np.argsort(-logits)[CANDIDATES:]] = -np.inf
                token, margin = pick(logits, len(ids) + len(drafted), sampling)
                drafted.append(token)
                margins.append(margin)
                rows = torch.cat([rows, layer.inputs([token], out, rows.shape[1])], dim=1)
        return drafted, margins

    return draft


def make_mtp_glm():
    torch.set_num_threads(1)
    spec = glm_vision.MODELS[NAME]
    model, stored = glm_vision.reference(spec), load_file(HERE / NAME / "model.safetensors")
    first = f"model.language_model.layers.{spec['text']['num_hidden_layers']}."
    load(model, {name: tensor for name, tensor in stored.items() if not name.startswith(first)})
    layer = Layer(model).eval()
    layer.block.self_attn.config._attn_implementation = "eager"
    own = {name.removeprefix(first): tensor.float() for name, tensor in stored.items() if name.startswith(first)}
    names = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "shared_head.norm": "head_norm"}
    of_layer = {f"{new}.weight": own.pop(f"{old}.weight") for old, new in names.items()}
    own.pop("embed_tokens.weight")
    layer.load_state_dict({**of_layer, **{f"block.{name}": tensor for name, tensor in own.items()}})
    rng, cases = np.random.default_rng(6), []
    for length in LENGTHS:
        prompt = rng.integers(32, 127, length).tolist()
        for sampling in (None, HOT):
            out, cycles = drafted_run(model, drafter(model, layer), prompt, BLOCKS, sampling, VOCAB)
            cases.append({"prompt": prompt, "temperature": sampling["temperature"] if sampling else 0.0, "out": out, "cycles": cycles})
            print(f"  {length} random ids: accepted {[c['accepted'] for c in cycles]}")
    dump(HERE / "mtp-glm.json", {
        "provenance": provenance("mtp_glm", **reference_versions()),
        "target": f"models/tests/golden/{NAME}",
        "drafter": f"models/tests/golden/{NAME}",
        "reference": "torch loop of mtp_glm.py around transformers' own layer",
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
