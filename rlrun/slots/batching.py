# SPDX-License-Identifier: Apache-2.0
"""The slot batching: which finished groups make the next batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rlrun.slots.registry import Checked


class ReadyGroup(NamedTuple):
    """A finished trajectory group as a batching policy sees it.

    Attributes:
        position: Place in the prompt stream.
        oldest_version: Weight version of its oldest token.
        admitted_version: Weight version when it was admitted.
        finish_order: 0 for the first group that finished in this run, and so on.
        target_step: The step it was admitted for, if the policy assigns one.
        attempt: Which attempt at its prompt made it, from 0.
        tokens: Sampled tokens over all its trajectories.
    """

    position: int
    oldest_version: int
    admitted_version: int
    finish_order: int
    target_step: int | None = None
    attempt: int = 0
    tokens: int = 0


@dataclass(kw_only=True, slots=True)
class Batching(Checked, ABC):
    """Which finished groups make the next batch: a ranking, bounded by the scheduler."""

    assigns_targets: ClassVar[bool] = False
    """True if a group is admitted for one certain step: the scheduler then fills ``target_step``,
    earliest open step first, and trains a step on exactly the groups that have it."""

    @abstractmethod
    def rank(self, ready: Sequence[ReadyGroup]) -> list[ReadyGroup]:
        """The groups in the order in which they should be trained; each exactly once.

        Args:
            ready: In the order in which they finished, which a stable sort keeps among equals.
        """
