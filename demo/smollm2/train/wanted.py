"""The target's own distribution after each row, over the ids that can be proposed: a drafter learns to propose from it."""

import torch
import torch.nn.functional as F


class Wanted:
    """B texts, T rows, V ids that can be proposed. `states` [B, T, layers · hidden], of which the last layer is the target's last one;
    `first` [B]: number of ids of each prompt; `lengths` [B]: number of ids of each text; `head` [V, hidden]: the target's rows.

    After the prompt's last row and each later row comes a token of the answer. These rows are numbered, text by text.
    """

    @torch.no_grad()
    def __init__(self, states, first, lengths, head, norm, eps):
        hidden = head.shape[1]
        row = torch.arange(states.shape[1])
        self.answers = (row >= first[:, None] - 1) & (row < lengths[:, None] - 1)
        self.number = torch.full(self.answers.shape, -1)
        self.number[self.answers] = torch.arange(int(self.answers.sum()))
        last = F.rms_norm(states[..., -hidden:][self.answers], (hidden,), norm, eps)
        logits = F.linear(last, head)
        self.choice, self.shares = logits.argmax(-1), logits.softmax(-1)

    def loss(self, logits, numbers):
        """`logits` [N, V] of the rows of these numbers → (loss of each, how many of the best are the target's best)."""
        losses = logits.logsumexp(-1) - (self.shares[numbers] * logits[:, : self.shares.shape[1]]).sum(-1)
        return losses, int((logits.argmax(-1) == self.choice[numbers]).sum())
