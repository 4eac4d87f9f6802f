"""What a drafter should propose: the target's own distribution behind each row, over the ids that can be proposed."""

import torch
import torch.nn.functional as F


class Wanted:
    """B texts, T rows. `states` [B, T, taps · hidden], the last tap being the target's last layer; `first` [B]: ids of the prompt;
    `lengths` [B]: ids in all; `head` [V, hidden]: the target's rows of the ids that can be proposed.

    Behind the prompt's last row and all rows after it stands a token of the answer. Those rows are numbered, text by text.
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
