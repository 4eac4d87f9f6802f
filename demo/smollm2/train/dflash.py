"""DFlash (arXiv 2602.06036) over a target that is not trained: demo/pair.py's drafter, and what it learns from.

B texts · A blocks a text · L rows a block. A block begins with a token of the answer, the bonus token, and fills the rows after it at
once. It reads the target's hidden states of the rows before it. The target's head chooses; here its rows of the frequent ids do.
"""

from types import SimpleNamespace

import pair
import torch
import torch.nn.functional as F
from torch import nn
from wanted import Wanted

BLOCK, ANCHORS = 8, 20


class DFlash(nn.Module):
    def __init__(self, config, feature_layers, ids, target, mask_id=3):
        super().__init__()
        c = SimpleNamespace(**vars(config), num_hidden_layers=2, initializer_range=0.02, block_size=BLOCK,
                            num_target_layers=target.config["num_hidden_layers"],
                            dflash_config={"mask_token_id": mask_id, "target_layer_ids": feature_layers})
        self.config, self.drafter = c, pair.Drafter(c)
        self.drafter.norm.weight.data.copy_(0.35 * target.norm)
        for name, tensor in (("embedding", target.embedding), ("head", target.head[ids].clone()), ("target_norm", target.norm)):
            self.register_buffer(name, tensor, persistent=False)

    def losses(self, ids, states, first, lengths, step=None):
        """As Eagle3.losses. The blocks depend on the number of the step; without one they begin everywhere alike."""
        wanted = Wanted(states, first, lengths, self.head, self.target_norm, self.config.rms_norm_eps)
        texts, rows = len(ids), states.shape[1]
        noise = torch.Generator().manual_seed(-1 if step is None else step)
        room = (lengths - 1 - first)[:, None]
        anchors = first[:, None] + (torch.rand(texts, ANCHORS, generator=noise) * room).long()
        places = anchors[..., None] + torch.arange(BLOCK)
        inputs = torch.full_like(places, self.config.dflash_config["mask_token_id"])
        inputs[..., 0] = ids.gather(1, anchors)
        blocks = torch.arange(ANCHORS).repeat_interleave(BLOCK)
        before = torch.arange(rows)[None, None] < anchors.repeat_interleave(BLOCK, 1)[..., None]
        inside = (blocks[:, None] == blocks[None]).expand(texts, -1, -1)
        mask = torch.cat((before, inside), -1)[:, None]
        hidden = self.drafter(F.embedding(inputs.flatten(1), self.embedding), places.flatten(1), states, torch.arange(rows)[None], mask)
        hidden = hidden.view(texts, ANCHORS, BLOCK, -1)
        total, weight, right = 0.0, 0.0, []
        for place in range(1, BLOCK):
            # Row `place` proposes the token after row anchor + place - 1.
            row = anchors + place - 1
            valid = row < lengths[:, None] - 1
            numbers = wanted.number.gather(1, row.clamp(max=rows - 1))[valid]
            losses, same = wanted.loss(F.linear(hidden[:, :, place][valid], self.head), numbers)
            # As the paper weighs the rows: the nearer the heavier.
            share = 2.718 ** (-(place - 1) / 4)
            total, weight = total + share * losses.sum(), weight + share * len(numbers)
            right.append((same, len(numbers)))
        return total / max(weight, 1.0), right

    def files(self, vocabulary):
        config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "layer_types": ["full_attention"] * 2, "hidden_act": "silu",
                  "attention_bias": False, "tie_word_embeddings": False, "vocab_size": vocabulary, **vars(self.config)}
        return config, self.drafter.state_dict()
