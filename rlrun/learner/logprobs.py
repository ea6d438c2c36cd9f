# SPDX-License-Identifier: Apache-2.0
"""Log-probs of the trained tokens of a microbatch, without ever holding all logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlrun.learner.model import head, hidden_states
from rlrun.sampling import process_logits, token_logprobs
from rlrun.types import Sampling

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The token ids of one microbatch: either padded rows, or one row of packed sequences.

    Attributes:
        token_ids: int64 [B, T].
        attention_mask: int64 [B, T], 1 at real tokens; None if packed.
        position_ids: int64 [B, T], from 0 in each sequence; packed sequences are told apart by it.
        targets: int64 [N], the trained tokens, sequence by sequence.
        predecessors: int64 [N], index into the flattened [B * T] of the position that predicts
            each target.
        trajectory: int64 [N], sequence of each target.
    """

    token_ids: Tensor
    attention_mask: Tensor | None
    position_ids: Tensor
    targets: Tensor
    predecessors: Tensor
    trajectory: Tensor

    @classmethod
    def padded(
        cls,
        token_ids: Sequence[Sequence[int]],
        loss_masks: Sequence[Sequence[bool]],
        device: torch.device,
    ) -> TokenRows:
        """A row per sequence, padded on the right.

        ``loss_masks[i][0]`` must be false: nothing predicts the first token.
        """
        width = max(len(row) for row in token_ids)
        starts = np.arange(len(token_ids)) * width
        shape = (len(token_ids), width)
        attention = np.zeros(shape, dtype=np.int64)
        for i, row in enumerate(token_ids):
            attention[i, : len(row)] = 1
        return cls._laid_out(token_ids, loss_masks, starts, shape, attention, device)

    @classmethod
    def packed(
        cls,
        token_ids: Sequence[Sequence[int]],
        loss_masks: Sequence[Sequence[bool]],
        device: torch.device,
    ) -> TokenRows:
        """One row of all sequences behind each other, without padding."""
        lengths = [len(row) for row in token_ids]
        starts = np.cumsum([0, *lengths[:-1]])
        return cls._laid_out(token_ids, loss_masks, starts, (1, sum(lengths)), None, device)

    @classmethod
    def _laid_out(
        cls,
        token_ids: Sequence[Sequence[int]],
        loss_masks: Sequence[Sequence[bool]],
        starts: Ids,
        shape: tuple[int, int],
        attention: Ids | None,
        device: torch.device,
    ) -> TokenRows:
        """Places sequence i at ``starts[i]`` of the flattened rows."""
        flat, positions = np.zeros(shape, np.int64).ravel(), np.zeros(shape, np.int64).ravel()
        predecessors, trajectory = [], []
        for i, (start, row, mask) in enumerate(zip(starts, token_ids, loss_masks, strict=True)):
            assert not mask[0], "the first token of a sequence cannot be trained"
            flat[start : start + len(row)] = row
            positions[start : start + len(row)] = np.arange(len(row))
            trained = np.flatnonzero(np.asarray(mask))
            predecessors.append(start + trained - 1)
            trajectory.append(np.full(len(trained), i))
        before = np.concatenate(predecessors)

        def tensor(array: Ids) -> Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            token_ids=tensor(flat.reshape(shape)),
            attention_mask=None if attention is None else tensor(attention),
            position_ids=tensor(positions.reshape(shape)),
            targets=tensor(flat[before + 1]),
            predecessors=tensor(before),
            trajectory=tensor(np.concatenate(trajectory)),
        )


@dataclass(frozen=True, slots=True)
class TokenValues:
    """What a forward pass says about the trained tokens, float32 [N], in nats.

    Attributes:
        logprobs: Under the distribution that the tokens were sampled from.
        entropies: Of that distribution, without gradient; NaN in a pass with gradient, where they
            are not computed.
        unfiltered: Log-probs at the sampling temperature without top-k and top-p; None unless
            asked for.
    """

    logprobs: Tensor
    entropies: Tensor
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
        self, rows: TokenRows, *, unfiltered: bool = False, sampling: Sampling | None = None
    ) -> TokenValues:
        """Log-probs of the trained tokens of a microbatch; ``sampling`` None is the generator's."""
        sampling = self.sampling if sampling is None else sampling
        hidden = hidden_states(self.model, rows)
        hidden = hidden.flatten(0, 1).index_select(0, rows.predecessors)
        recompute = torch.is_grad_enabled() and len(rows.targets) > self.chunk_tokens
        chunks = []
        parts = hidden.split(self.chunk_tokens), rows.targets.split(self.chunk_tokens)
        for part, targets in zip(*parts, strict=True):
            if recompute:
                chunk = checkpoint(
                    self._chunk, part, targets, unfiltered, sampling, use_reentrant=False
                )
            else:
                chunk = self._chunk(part, targets, unfiltered, sampling)
            chunks.append(chunk)
        columns = [torch.cat(column) for column in zip(*chunks, strict=True)]
        return TokenValues(columns[0], columns[1], columns[2] if unfiltered else None)

    def _chunk(
        self, hidden: Tensor, targets: Tensor, unfiltered: bool, sampling: Sampling
    ) -> tuple[Tensor, ...]:
        # Differences of log-probs are small: bfloat16 would round them away (10.01 - 10.03 = 0).
        logits = head(self.model)(hidden).float()
        processed = process_logits(logits, sampling)
        chosen = token_logprobs(processed, targets)
        entropy = (
            _entropy(processed)
            if not torch.is_grad_enabled()
            else chosen.new_full(chosen.shape, torch.nan)
        )
        if not unfiltered:
            return chosen, entropy
        if sampling.top_k is None and sampling.top_p == 1:
            return chosen, entropy, chosen
        plain = process_logits(logits, Sampling(sampling.temperature))
        return chosen, entropy, token_logprobs(plain, targets)


def _entropy(processed: Tensor) -> Tensor:
    """Entropies [N] of distributions given by logits [N, V], -inf where filtered."""
    logprobs = processed.log_softmax(-1)
    # A filtered token has probability 0 and log-prob -inf; its share of the entropy is 0.
    return -torch.where(logprobs.isinf(), 0.0, logprobs.exp() * logprobs).sum(-1)
