"""A small language model of the target's tokens, as a drafter of kind `model`: Qwen3's architecture, demo/pair.py's model."""

from types import SimpleNamespace

import pair
from torch import nn
from wanted import Wanted

DEPTH = 3


class Small(nn.Module):
    def __init__(self, config, feature_layers, ids, target):
        super().__init__()
        c = SimpleNamespace(hidden_size=192, num_attention_heads=3, num_key_value_heads=1, head_dim=64, intermediate_size=640,
                            num_hidden_layers=6, vocab_size=len(target.embedding), rms_norm_eps=config.rms_norm_eps, rope_theta=10000.0,
                            max_position_embeddings=config.max_position_embeddings, initializer_range=0.02)
        self.config, self.model = c, pair.Target(c)
        for name, tensor in (("ids", ids), ("head", target.head[ids].clone()), ("target_norm", target.norm)):
            self.register_buffer(name, tensor, persistent=False)

    def losses(self, ids, states, first, lengths, step=0):
        """As Eagle3.losses. What it proposes at any place follows from the ids alone, so all places are one."""
        wanted = Wanted(states, first, lengths, self.head, self.target_norm, self.config.rms_norm_eps)
        hidden, _ = self.model(ids[:, :-1])
        logits = self.model.logits(hidden[wanted.answers])
        # The other ids count in the sum alone: they are never the target's.
        shares = wanted.shares
        losses = logits.logsumexp(-1) - (shares * logits[:, self.ids]).sum(-1)
        same = int((logits.argmax(-1) == self.ids[wanted.choice]).sum())
        return losses.mean(), [(same, len(losses))] * DEPTH

    def files(self, vocabulary):
        config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "attention_bias": False,
                  "tie_word_embeddings": True, **vars(self.config)}
        return config, self.model.state_dict()
