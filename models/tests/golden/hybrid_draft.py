"""Golden files of DFlash, DFlash 2 and DSpark drafters whose target is a Qwen3.5.

Part of make.py: `python models/tests/golden/make.py hybrid_draft`. It needs the packages of draft_tokens.py, whose drafters, training
and loop these are, and `mtp-dense`, which is the target: a layer with states and one that attends, under the names of a wrapper, with
an embedding that is also the head. The drafters read hidden states of both kinds of layers.
"""

from importlib import metadata

import numpy as np
import torch
from safetensors.torch import load_file

import draft_tokens
import hybrid
import mtp
from draft import MASK_ID, PROMPT_LENGTHS, UNDECIDED, Target, qwen3_config, sentences
from draft_tokens import LAYERS, RULES, block_rows, compare_with_mlx_vlm, compare_with_speculators, run, train
from make import HERE, dump, provenance, reference_versions, row

TARGET = "mtp-dense"
HIDDEN, LAYERS_OF_TARGET = mtp.SIZES["hidden_size"], mtp.SIZES["num_hidden_layers"]


def config(architecture, **more):
    return qwen3_config({**LAYERS, "hidden_size": HIDDEN}, architectures=[architecture], num_target_layers=LAYERS_OF_TARGET, **more)


PAIRS = {
    "dflash-qwen3_5": {
        "kind": "dflash", "taps": [0, 1], "rows": 8, "bonus_proposes": False, "causal": False,
        "config": config("DFlashDraftModel", is_causal=False,
                         dflash_config={"block_size": 8, "mask_token_id": MASK_ID, "target_layer_ids": [0, 1]}),
    },
    "dflash2-qwen3_5": {
        "kind": "dflash2", "taps": [1, 0], "rows": 8, "bonus_proposes": False, "causal": False,
        "config": config("DFlash2DraftModel", is_causal=False, dflash_config={
            "block_size": 8, "mask_token_id": MASK_ID, "target_layer_ids": [1, 0], "conv_kernel_size": 2, "conv_group_size": 16,
            "selector_rank": 6, "selector_top_k": 5}),
    },
    # The layer with states alone.
    "dspark-qwen3_5": {
        "kind": "dspark", "taps": [0], "rows": 8, "bonus_proposes": True, "causal": True,
        "config": config("Qwen3DSparkModel", block_size=7, mask_token_id=MASK_ID, target_layer_ids=[0], markov_rank=6,
                         markov_head_type="vanilla", enable_confidence_head=True, dflash_config={"causal": True}),
    },
}


class Rows(list):
    """Ids that were read, in place of a cache."""

    def get_seq_length(self):
        return len(self)

    def crop(self, count):
        """Drops -count ids at the end."""
        del self[count:]


class Uncached(Target):
    """Reads all ids again in each forward, because states cannot be rewound."""

    @property
    def past(self):
        return self.rows

    @past.setter
    def past(self, value):
        self.rows = None if value is None else Rows()

    def forward(self, ids):
        before = 0
        if self.rows is not None:
            before = len(self.rows)
            self.rows += ids[0].tolist()
            ids = torch.tensor([self.rows])
        out = self.model(ids, use_cache=False)
        return out.logits[:, before:], torch.cat([self.seen[i] for i in self.taps], dim=-1)[:, before:]


def load_target(taps):
    model_type, tied, sizes, _ = mtp.PAIRS[TARGET]
    stored = load_file(HERE / TARGET / "model.safetensors")
    text = {name: w for name, w in stored.items() if name.startswith(mtp.TEXT_PREFIX)}
    return Uncached(hybrid.load_reference(model_type, tied, sizes, text).requires_grad_(False), taps)


def first_hidden(target, drafter, prompt, bonus):
    """The hidden rows that the first block proposes, row by row."""
    with torch.inference_mode():
        target.past = None
        taps = target.forward(torch.tensor([prompt]))[1]
        return row(drafter.hidden(taps, block_rows(target, torch.tensor([bonus]), drafter.spec))[0].flatten())


def make_hybrid_draft():
    torch.set_num_threads(1)
    # Its classes read the width of the target when they are made.
    draft_tokens.HIDDEN = HIDDEN
    for name, spec in PAIRS.items():
        target = load_target(spec["taps"])
        drafter = train(name, spec, target)
        checks = ["hidden rows within 1e-3 of mlx-vlm with all layers full, and its greedy drafts"]
        assert compare_with_mlx_vlm(name, drafter, target)
        if spec["kind"] == "dspark":
            compare_with_speculators(drafter)
            checks.append("heads within 1e-4 of speculators")
        # A kind that proposes hidden rows drafts greedily whatever the target samples.
        rules = {"greedy": RULES["greedy"]} if spec["kind"] == "dflash" else RULES
        rng = np.random.default_rng(3)
        runs = []
        for rule_name, rule in rules.items():
            for length in PROMPT_LENGTHS:
                prompt = sentences(rng, 1, max(length, 2))[0, -length:].tolist()
                ids, cycles = run(target, drafter, prompt, rule)
                case = {"rule": rule_name, "prompt": prompt, "ids": ids, "cycles": cycles}
                if spec["kind"] == "dflash":
                    case = {"prompt": prompt, "greedy": ids, "first_hidden": first_hidden(target, drafter, prompt, ids[0]),
                            "cycles": cycles}
                runs.append(case)
                print(f"{name}, {rule_name}, prompt of {length}: accepted {[c['accepted'] for c in cycles]} of "
                      f"{[len(c['drafted']) for c in cycles]}")
        counts = [c["accepted"] for case in runs for c in case["cycles"]]
        assert any(0 < c < spec["rows"] - 1 for c in counts) and 0 in counts
        packages = {package: metadata.version(package) for package in ("mlx-vlm", "mlx", "mlx-lm", "speculators")}
        dump(HERE / f"{name}.json", {
            "provenance": provenance("hybrid_draft", **reference_versions(), **packages),
            "target": f"models/tests/golden/{TARGET}",
            "drafter": f"models/tests/golden/{name}",
            "reference": ["plain torch loop, draft_tokens.py", *checks],
            "arithmetic": "float32; choices in float64; processor: CPU",
            "meaning": {
                "ids, greedy": "ids after the prompt: the first by prefill, then each cycle's chosen ones",
                "first_hidden": "the first cycle's hidden rows 1.. after the final norm, row by row",
                "cycles": "drafted ids, how many of them were accepted, the target's choices up to the first that is no draft; margins: "
                          "distance of each draft, of the block's end at each draft (distance of the probability of reaching it from "
                          "the least one) and of each of the target's choices from another outcome",
            },
            "undecided": UNDECIDED,
            "rows": spec["rows"],
            "block": spec["rows"],
            "rules": RULES,
            "cases": runs,
        })
