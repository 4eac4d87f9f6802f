"""EAGLE-3 (arXiv 2503.01840) in torch, in the speculators layout: one layer that reads a token and the hidden state before it.

B texts · T rows · V ids that can be proposed · D head_dim. Row i reads hidden state i and token i + 1, and proposes token i + 2. A
further draft reads the draft before it, and the layer's output for the row before it. Training does the same `depth` times, with the
text's own tokens as drafts: row i of place k proposes token i + 2 + k; it attends to the rows 0 to i of place 0, whose hidden states
are the target's, and to row i of each place between.
"""

import torch
import torch.nn.functional as F
from pair import Norm, rope_table, rotate
from torch import nn
from wanted import Wanted

DEPTH = 3


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv, self.size = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        wide, narrow = self.heads * self.size, self.kv * self.size
        self.q_proj = nn.Linear(2 * c.hidden_size, wide, bias=False)
        self.k_proj = nn.Linear(2 * c.hidden_size, narrow, bias=False)
        self.v_proj = nn.Linear(2 * c.hidden_size, narrow, bias=False)
        self.o_proj = nn.Linear(wide, c.hidden_size, bias=False)
        self.q_norm, self.k_norm = Norm(self.size, c.rms_norm_eps), Norm(self.size, c.rms_norm_eps)

    def split(self, x, count):
        return x.view(*x.shape[:-1], count, self.size).transpose(1, 2)

    def forward(self, x, rope, places):
        """x [B, T, 2 · hidden]. `places`: keys and values of the places before, to which those of this one are added."""
        queries = rotate(self.q_norm(self.split(self.q_proj(x), self.heads)), rope)
        group = self.heads // self.kv
        keys = rotate(self.k_norm(self.split(self.k_proj(x), self.kv)), rope).repeat_interleave(group, 1)
        values = self.split(self.v_proj(x), self.kv).repeat_interleave(group, 1)
        places.append((keys, values))
        queries = queries * self.size**-0.5
        first_keys, first_values = places[0]
        rows = x.shape[1]
        later = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        scores = [(queries @ first_keys.transpose(-1, -2)).masked_fill(later, float("-inf"))]
        scores += [(queries * keys).sum(-1, keepdim=True) for keys, _ in places[1:]]
        shares = torch.cat(scores, -1).softmax(-1)
        mixed = shares[..., :rows] @ first_values
        for at, (_, values) in enumerate(places[1:]):
            mixed = mixed + shares[..., rows + at, None] * values
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.hidden_norm = Norm(c.hidden_size, c.rms_norm_eps), Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn, self.post_attention_layernorm = Attention(c), Norm(c.hidden_size, c.rms_norm_eps)
        self.mlp = nn.Module()
        self.mlp.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.mlp.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.mlp.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, embedded, hidden, rope, places):
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), -1)
        hidden = hidden + self.self_attn(x, rope, places)
        x = self.post_attention_layernorm(hidden)
        return hidden + self.mlp.down_proj(F.silu(self.mlp.gate_proj(x)) * self.mlp.up_proj(x))


class Eagle3(nn.Module):
    """`ids`: those that can be proposed, ascending. The head has the target's rows of them, and is not trained."""

    def __init__(self, config, feature_layers, ids, target):
        super().__init__()
        self.config = c = config
        self.register_buffer("ids", ids, persistent=False)
        self.register_buffer("embedding", target.embedding, persistent=False)
        self.register_buffer("head", target.head[ids].clone(), persistent=False)
        self.register_buffer("target_norm", target.norm, persistent=False)
        self.fc_norm = nn.ModuleList(Norm(c.hidden_size, c.rms_norm_eps) for _ in feature_layers)
        self.fc = nn.Linear(len(feature_layers) * c.hidden_size, c.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(c)])
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.feature_layers = feature_layers
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.zeros_(p) if name.endswith(("o_proj.weight", "down_proj.weight")) else nn.init.normal_(p, std=p.shape[1] ** -0.5)
        # Its rows meet the target's head: a third of its scale, because a first guess should be an unsure one.
        self.norm.weight.data.copy_(0.35 * target.norm)

    def features(self, states):
        parts = states.chunk(len(self.feature_layers), -1)
        return self.fc(torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts)], -1))

    def losses(self, ids, states, first, lengths, step=0, depth=DEPTH):
        """ids [B, T + 1], the others as in wanted.py → mean loss, and at each place how many drafts are the target's choice, of how
        many."""
        rows = states.shape[1]
        row = torch.arange(rows)
        wanted = Wanted(states, first, lengths, self.head, self.target_norm, self.config.rms_norm_eps)
        hidden, places, total, weight, right = self.features(states), [], 0.0, 0.0, []
        for place in range(depth):
            at = row + 1 + place
            embedded = F.embedding(ids[:, at.clamp(max=rows)], self.embedding)
            hidden = self.layers[0](embedded, hidden, rope_table(self.config, row + place), places)
            # Before the answer's first token nothing is drafted.
            valid = (at < rows) & wanted.answers[:, at.clamp(max=rows - 1)] & (row >= first[:, None] - 1)
            numbers = wanted.number[:, at.clamp(max=rows - 1)][valid]
            losses, same = wanted.loss(F.linear(self.norm(hidden[valid]), self.head), numbers)
            total, weight = total + 0.8**place * losses.sum(), weight + 0.8**place * len(numbers)
            right.append((same, len(numbers)))
        return total / max(weight, 1.0), right

    def files(self, vocabulary):
        """config.json and tensors of the checkpoint."""
        c = self.config
        layer = {"model_type": "qwen3", "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size, "num_hidden_layers": 1,
                 "num_attention_heads": c.num_attention_heads, "num_key_value_heads": c.num_key_value_heads, "head_dim": c.head_dim,
                 "rms_norm_eps": c.rms_norm_eps, "rope_theta": c.rope_theta, "max_position_embeddings": c.max_position_embeddings,
                 "vocab_size": vocabulary, "hidden_act": "silu"}
        config = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": len(self.ids),
                  "fc_norm": True, "norm_before_residual": False, "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in self.feature_layers],
                  "speculators_config": {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}]},
                  "transformer_layer_config": layer}
        weights = {**self.state_dict(), "lm_head.weight": self.head, "d2t": self.ids - torch.arange(len(self.ids))}
        return config, weights
