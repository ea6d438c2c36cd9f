# SPDX-License-Identifier: Apache-2.0
"""The tokens of a microbatch as the model takes them: padded rows, or one row of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The token ids of one microbatch: either padded rows, or one row of packed sequences.

    Attributes:
        token_ids: int64 [B, T].
        attention_mask: int64 [B, T], 1 at real tokens; None where nothing needs to be hidden:
            behind a sequence, padding is seen by no token of it in a causal model.
        position_ids: int64 [B, T], from 0 in each sequence; packed sequences are told apart by it.
        packed_lengths: Tokens of each sequence of the one row; None if not packed.
        targets: int64 [N], the trained tokens, sequence by sequence.
        predecessors: int64 [N], index into the flattened [B * T] of the position that predicts
            each target.
    """

    token_ids: Tensor
    attention_mask: Tensor | None
    position_ids: Tensor
    packed_lengths: tuple[int, ...] | None
    targets: Tensor
    predecessors: Tensor

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
        # Positions run on through the padding: starting again, they would say another sequence.
        positions = np.broadcast_to(np.arange(width), shape).copy()
        return cls._laid_out(token_ids, loss_masks, starts, positions, None, device)

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
        positions = np.concatenate([np.arange(length) for length in lengths])[None]
        return cls._laid_out(token_ids, loss_masks, starts, positions, tuple(lengths), device)

    @classmethod
    def _laid_out(
        cls,
        token_ids: Sequence[Sequence[int]],
        loss_masks: Sequence[Sequence[bool]],
        starts: Ids,
        positions: Ids,
        packed_lengths: tuple[int, ...] | None,
        device: torch.device,
    ) -> TokenRows:
        """Places sequence i at ``starts[i]`` of the flattened rows."""
        flat = np.zeros(positions.size, np.int64)
        predecessors = []
        for start, row, mask in zip(starts, token_ids, loss_masks, strict=True):
            assert not mask[0], "the first token of a sequence cannot be trained"
            flat[start : start + len(row)] = row
            trained = np.flatnonzero(np.asarray(mask))
            predecessors.append(start + trained - 1)
        before = np.concatenate(predecessors)

        def tensor(array: Ids) -> Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            token_ids=tensor(flat.reshape(positions.shape)),
            attention_mask=None,
            position_ids=tensor(positions),
            packed_lengths=packed_lengths,
            targets=tensor(flat[before + 1]),
            predecessors=tensor(before),
        )
