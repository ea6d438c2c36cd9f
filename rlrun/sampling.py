# SPDX-License-Identifier: Apache-2.0
"""From logits to the distribution that tokens are drawn from; used by generator and learner alike.

Both must apply the same temperature and filters, or the ratio of their probabilities says nothing
about the policy: a filtered distribution is renormalized over what it keeps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.types import Sampling

BLOCK = 512
"""Tokens of the vocabulary whose probabilities are summed together before one is drawn."""


def process_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Applies temperature, then top-k, then top-p.

    Top-p is taken over what top-k left, and keeps the fewest most likely tokens whose probability
    adds up to at least ``top_p``; a tie at the border of top-k keeps all of the tied. Temperature 0
    (greedy) leaves the logits as they are, filters included: its log-probs are those of the plain
    softmax.

    Args:
        logits: [N, V], any floating type; not modified. Gradients flow through what is kept.
        sampling: Temperature and filters.

    Returns:
        float32 [N, V]; -inf where a token cannot be drawn, never a whole row of it.
    """
    logits = logits.float()
    if sampling.temperature == 0:
        return logits
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        smallest_kept = logits.detach().topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
    if sampling.top_p < 1:
        logits = logits.masked_fill(_outside_top_p(logits.detach(), sampling.top_p), -torch.inf)
    return logits


def _outside_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Bool [N, V]: the tail whose probability does not reach beyond 1 - top_p."""
    ascending, order = logits.sort(dim=-1, stable=True)
    outside = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    outside[:, -1] = False
    return torch.zeros_like(outside).scatter(-1, order, outside)


def token_logprobs(processed: Tensor, tokens: Tensor) -> Tensor:
    """Log-probs float32 [N] of ``tokens`` int64 [N] under ``process_logits``'s result [N, V].

    -inf for a token that the filters excluded.
    """
    chosen = processed.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen - processed.logsumexp(dim=-1)


def draw_tokens(processed: Tensor, uniforms: Tensor) -> Tensor:
    """Draws one token per row by inverting the cumulative distribution.

    One number per row decides, so that a row's draw depends on nothing but its own logits and its
    own number. The sums are in float64: in float32 they lose the tail of a large vocabulary. They
    are taken first over blocks of the vocabulary and then within the block that was drawn, as a
    running sum costs ten times as much as a sum.

    Args:
        processed: float32 [N, V], from ``process_logits``.
        uniforms: float64 [N] in [0, 1).

    Returns:
        int64 [N].
    """
    weights = processed.softmax(dim=-1)
    size = weights.shape[-1]
    if size <= BLOCK:
        target = uniforms.unsqueeze(-1) * weights.sum(-1, keepdim=True, dtype=torch.float64)
        return _place(weights, target).squeeze(-1)
    blocks = torch.nn.functional.pad(weights, (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    # A block's own sum loses no more in float32 than its weights already have.
    totals = blocks.sum(-1).double()
    target = uniforms.unsqueeze(-1) * totals.sum(-1, keepdim=True)
    block = _place(totals, target)
    target = target - (totals.cumsum(-1) - totals).gather(-1, block)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block.squeeze(-1)]
    return (block * BLOCK + _place(inside, target)).squeeze(-1).clamp(max=size - 1)


def _place(weights: Tensor, target: Tensor) -> Tensor:
    """Index [N, 1] of the weight [N, K] whose part of the running sum covers the target [N, 1].

    The strict comparison passes over weights of 0. A target beyond the end, where rounding may put
    it, means the last weight above 0.
    """
    sums = weights.cumsum(-1, dtype=torch.float64)
    beyond = sums[:, -1:].contiguous()
    found = torch.searchsorted(sums, target, right=True)
    return found.minimum(torch.searchsorted(sums, beyond)).clamp(max=weights.shape[-1] - 1)
