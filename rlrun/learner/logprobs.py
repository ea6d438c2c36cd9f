# SPDX-License-Identifier: Apache-2.0
"""Log-probs of the trained tokens of a microbatch, without ever holding all logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlrun.learner.model import head, hidden_states
from rlrun.learner.rows import TokenRows
from rlrun.sampling import process_logits, token_logprobs
from rlrun.types import Sampling


@dataclass(frozen=True, slots=True)
class TokenValues:
    """What a forward pass says about the trained tokens, float32 [N], in nats.

    Attributes:
        logprobs: Under the distribution that the tokens were sampled from.
        entropies: Of that distribution, without gradient; None unless asked for.
        unfiltered: Log-probs at the sampling temperature without top-k and top-p; None unless
            asked for.
    """

    logprobs: Tensor
    entropies: Tensor | None
    unfiltered: Tensor | None


class TokenLogprobs(nn.Module):
    """A causal language model, seen as what gives log-probs of chosen tokens.

    One module with one forward, so that whoever shards parameters gathers them around all of it:
    the head is applied outside of the model's own forward.

    Args:
        model: The language model.
        sampling: Temperature and filters of the generator.
        chunk_tokens: Logits of at most this many tokens exist at a time.
    """

    def __init__(self, model: PreTrainedModel, sampling: Sampling, chunk_tokens: int) -> None:
        super().__init__()
        self.model, self.sampling, self.chunk_tokens = model, sampling, chunk_tokens

    def forward(
        self,
        rows: TokenRows,
        *,
        entropies: bool = False,
        unfiltered: bool = False,
        sampling: Sampling | None = None,
    ) -> TokenValues:
        """Log-probs of the trained tokens of a microbatch; ``sampling`` None is the generator's."""
        sampling = self.sampling if sampling is None else sampling
        hidden = hidden_states(self.model, rows)
        hidden = hidden.flatten(0, 1).index_select(0, rows.predecessors)
        recompute = torch.is_grad_enabled() and len(rows.targets) > self.chunk_tokens
        chunks = []
        parts = hidden.split(self.chunk_tokens), rows.targets.split(self.chunk_tokens)
        for part, targets in zip(*parts, strict=True):
            arguments = part, targets, entropies, unfiltered, sampling
            if recompute:
                chunks.append(checkpoint(self._chunk, *arguments, use_reentrant=False))
            else:
                chunks.append(self._chunk(*arguments))
        columns = [torch.cat(column) for column in zip(*chunks, strict=True)]
        return TokenValues(
            columns[0], columns[1] if entropies else None, columns[-1] if unfiltered else None
        )

    def _chunk(
        self,
        hidden: Tensor,
        targets: Tensor,
        entropies: bool,
        unfiltered: bool,
        sampling: Sampling,
    ) -> tuple[Tensor, ...]:
        """Log-probs of a few tokens; behind them what else is asked for, in that order."""
        # Differences of log-probs are small: bfloat16 would round them away (10.01 - 10.03 = 0).
        logits = head(self.model)(hidden).float()
        processed = process_logits(logits, sampling)
        values = [token_logprobs(processed, targets)]
        if entropies:
            values.append(_entropy(processed))
        if unfiltered and sampling.top_k is None and sampling.top_p == 1:
            values.append(values[0])
        elif unfiltered:
            plain = process_logits(logits, Sampling(sampling.temperature))
            values.append(token_logprobs(plain, targets))
        return tuple(values)


@torch.no_grad()
def _entropy(processed: Tensor) -> Tensor:
    """Entropies [N] of distributions given by logits [N, V], -inf where filtered."""
    logprobs = processed.log_softmax(-1)
    # In place, as nothing here has a gradient: each further copy is as large as all logits.
    shares = logprobs.exp().mul_(logprobs)
    # A filtered token has probability 0 and log-prob -inf; its share of the entropy is 0.
    return -shares.masked_fill_(logprobs.isneginf(), 0.0).sum(-1)
