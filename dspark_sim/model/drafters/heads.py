"""The sequential heads (eqs. 5 and 6) and the confidence head (eq. 7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MarkovHead(nn.Module):
    """B(x_{k−1}, ·) = W1[x_{k−1}] W2 (eq. 5): what the previous token adds to the logits."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.w1 = nn.Embedding(vocab_size, rank)
        self.w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        nn.init.normal_(self.w1.weight, std=0.02)
        nn.init.zeros_(self.w2.weight)

    def previous(self, tokens: Tensor) -> Tensor:
        """Return W1[x_{k−1}] (…, r) of tokens (…)."""
        return self.w1(tokens)

    def forward(
        self, state: Tensor | None, embedded: Tensor, hidden: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Return (no state, bias (…, V')) from W1[x_{k−1}] (…, r); `hidden` is not used."""
        return state, self.w2(embedded)


class RNNHead(nn.Module):
    """The recurrent head (eq. 6), s_0 = 0.

    z_k = [s_{k−1}; W1[x_{k−1}]; h_k]; s_k = σ(W_g z)⊙s_{k−1} + (1 − σ(W_g z))⊙tanh(W_c z);
    B_k = W2ᵀ tanh(W_o z). W_g, W_c and W_o are one linear layer split in three.
    """

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Embedding(vocab_size, rank)
        self.w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        self.gates = nn.Linear(2 * rank + hidden, 3 * rank, bias=False)
        nn.init.normal_(self.w1.weight, std=0.02)
        nn.init.zeros_(self.w2.weight)

    def previous(self, tokens: Tensor) -> Tensor:
        """Return W1[x_{k−1}] (…, r) of tokens (…)."""
        return self.w1(tokens)

    def forward(
        self, state: Tensor | None, embedded: Tensor, hidden: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Return (s_k (…, r), bias (…, V')) from s_{k−1} (none at k = 1), W1[x_{k−1}] and h_k."""
        if state is None:
            state = torch.zeros_like(embedded)
        gate, candidate, out = self.gates(torch.cat([state, embedded, hidden], -1)).chunk(3, -1)
        keep = gate.sigmoid()
        return keep * state + (1 - keep) * candidate.tanh(), self.w2(out.tanh())


class ConfidenceHead(nn.Module):
    """c_k = σ(wᵀ[h_k; W1[x_{k−1}]]) (eq. 7); it never sees x_k, which keeps scheduling lossless."""

    def __init__(self, hidden: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Linear(hidden + rank, 1)
        nn.init.zeros_(self.weight.weight)
        nn.init.zeros_(self.weight.bias)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Return the logit (…) from h_k (…, d) and W1[x_{k−1}] (…, r)."""
        return self.weight(torch.cat([hidden, embedded], -1)).squeeze(-1)
