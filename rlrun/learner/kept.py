# SPDX-License-Identifier: Apache-2.0
"""A forward pass that the update goes on from, so that on-policy data goes forward once only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlrun.batch import Sample
from rlrun.learner.logprobs import TokenValues
from rlrun.types import Trajectory

WORTH_IT = 2 / 3
"""Least part of the tokens that must have a gradient.

A backward pass takes about two forward passes, and over a kept forward pass it goes through all
tokens: 1 + 2 against 1 + 3 x part.
"""


@dataclass(frozen=True, slots=True)
class KeptForward:
    """Log-probs of one microbatch, with their graph, under weights that have not changed since.

    Attributes:
        trajectories: In the order of the values.
        values: Of all their sampled tokens.
    """

    trajectories: tuple[Trajectory, ...]
    values: TokenValues

    def of(self, samples: Sequence[Sample]) -> TokenValues | None:
        """The values of some of the samples, in their order; None if one was not in the pass."""
        counts = [trajectory.num_sampled for trajectory in self.trajectories]
        places = torch.arange(sum(counts)).split(counts)
        # The very objects: that two trajectories are equal does not make them the same row.
        rows = {id(t): row for t, row in zip(self.trajectories, places, strict=True)}
        chosen = [rows.get(id(sample.trajectory)) for sample in samples]
        found = [row for row in chosen if row is not None]
        if not found or len(found) < len(chosen):
            return None
        index = torch.cat(found).to(self.values.logprobs.device)
        entropies = self.values.entropies
        return TokenValues(
            self.values.logprobs.index_select(0, index),
            None if entropies is None else entropies.index_select(0, index),
            None,
        )


def is_worth_keeping(samples: Sequence[Sample]) -> bool:
    """Whether enough of the tokens have an advantage, as far as it is known by now."""
    moving = sum(
        len(sample.trajectory.token_ids)
        for sample in samples
        if sample.masked is None and sample.has_advantage
    )
    total = sum(len(sample.trajectory.token_ids) for sample in samples)
    return moving > 0 and moving >= WORTH_IT * total
