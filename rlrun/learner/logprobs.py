# SPDX-License-Identifier: Apache-2.0
"""Log-probs of the trained tokens of a microbatch, without ever holding all logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlrun.learner.model import head, hidden_states
from rlrun.sampling import process_logits
from rlrun.types import Sampling


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Right-padded rows of one microbatch.

    Attributes:
        token_ids: int64 [B, T].
        attention_mask: int64 [B, T], 1 at real tokens.
        targets: int64 [N], the trained tokens, row by row.
        predecessors: int64 [N], index into the flattened [B * T] of the position that predicts
            each target.
        trajectory: int64 [N], row of each target.
    """

    token_ids: Tensor
    attention_mask: Tensor
    targets: Tensor
    predecessors: Tensor
    trajectory: Tensor

    @classmethod
    def of(
        cls,
        token_ids: Sequence[Sequence[int]],
        loss_masks: Sequence[Sequence[bool]],
        device: torch.device,
    ) -> TokenRows:
        """Pads rows on the right and finds what predicts each trained token.

        ``loss_masks[i][0]`` must be false: nothing predicts the first token.
        """
        width = max(len(row) for row in token_ids)
        ids: NDArray[np.int64] = np.zeros((len(token_ids), width), dtype=np.int64)
        attention, trained = np.zeros_like(ids), np.zeros(ids.shape, dtype=np.bool_)
        for i, (row, mask) in enumerate(zip(token_ids, loss_masks, strict=True)):
            ids[i, : len(row)], attention[i, : len(row)] = row, 1
            trained[i, : len(row)] = mask
        assert not trained[:, 0].any(), "the first token of a row cannot be trained"
        rows, columns = np.nonzero(trained)
        return cls(
            token_ids=torch.from_numpy(ids).to(device),
            attention_mask=torch.from_numpy(attention).to(device),
            targets=torch.from_numpy(ids[rows, columns]).to(device),
            predecessors=torch.from_numpy(rows * width + columns - 1).to(device),
            trajectory=torch.from_numpy(rows).to(device),
        )


def token_logprobs(
    model: PreTrainedModel, rows: TokenRows, sampling: Sampling, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """Log-probs of the trained tokens under the distribution that they were sampled from.

    Args:
        model: The policy.
        rows: A microbatch.
        sampling: Temperature and filters of the generator.
        chunk_tokens: Logits of at most this many tokens exist at a time.

    Returns:
        Log-probs and entropies in nats (the latter without gradient), both float32 [N].
    """
    hidden = hidden_states(model, rows.token_ids, rows.attention_mask)
    hidden = hidden.flatten(0, 1).index_select(0, rows.predecessors)
    recompute = torch.is_grad_enabled() and len(rows.targets) > chunk_tokens
    logprobs, entropies = [], []
    for part, targets in zip(
        hidden.split(chunk_tokens), rows.targets.split(chunk_tokens), strict=True
    ):
        if recompute:
            values = checkpoint(
                _chunk,
                model,
                part,
                targets,
                sampling,
                use_reentrant=False,
                determinism_check="none",
            )
        else:
            values = _chunk(model, part, targets, sampling)
        logprobs.append(values[0])
        entropies.append(values[1])
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk(
    model: PreTrainedModel, hidden: Tensor, targets: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    # Differences of log-probs are small: bfloat16 would round them away (10.01 - 10.03 = 0).
    logits = process_logits(head(model)(hidden).float(), sampling)
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(-1, targets[:, None])[:, 0]
    with torch.no_grad():
        # A filtered token has probability 0 and log-prob -inf; its share of the entropy is 0.
        terms = torch.where(logprobs.isinf(), 0.0, logprobs.exp() * logprobs)
        entropy = -terms.sum(-1)
    return chosen, entropy
