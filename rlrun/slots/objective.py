# SPDX-License-Identifier: Apache-2.0
"""The slots advantage, correction and loss: from rewards and log-probs to a gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlrun.slots.registry import Checked, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True, slots=True)
class Advantage(Checked, ABC):
    """How good a sample was, relative to its group."""

    @abstractmethod
    def __call__(self, groups: Sequence[Sequence[float | None]]) -> list[list[float]]:
        """Advantages in float64 for the rewards of a batch, one list per trajectory group.

        A reward of None marks a sample that is out (failed or filtered): it gets 0 and does not
        enter the statistics of the others.
        """


@dataclass(frozen=True, slots=True)
class CorrectionInputs:
    """Log-probs of the trained tokens of a whole batch, flat over trajectories.

    Attributes:
        prev_logprobs: float32 [N], the learner's before the update.
        generation_logprobs: float32 [N], the generator's.
        trajectory: int64 [N], in 0 .. num_trajectories - 1, ascending.
        num_trajectories: Number of trajectories, those without a trained token included.
    """

    prev_logprobs: Tensor
    generation_logprobs: Tensor
    trajectory: Tensor
    num_trajectories: int


@dataclass(frozen=True, slots=True)
class CorrectionOutput:
    """Constant importance weights and what they say about the mismatch.

    Attributes:
        weights: float32 [N], finite and at least 0.
        metrics: Values of the declared ``correction/*`` metrics.
    """

    weights: Tensor
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MismatchVerdict:
    """What is to be said of a batch.

    Attributes:
        warning: For the user, or None.
        bad: Whether the batch counts towards the end of the run.
    """

    warning: str | None
    bad: bool


@dataclass(kw_only=True, slots=True)
class Correction(Checked, ABC):
    """Importance-sampling correction between the learner's and the generator's probabilities."""

    @abstractmethod
    def __call__(self, inputs: CorrectionInputs, *, asynchronous: bool) -> CorrectionOutput:
        """Weights for every trained token of the batch: 1 unless active in such a schedule.

        The metrics are those of the configured treatment either way.
        """

    @abstractmethod
    def active(self, asynchronous: bool) -> bool:
        """Whether weights other than 1 are applied in a run of this schedule."""

    @abstractmethod
    def check(self, metrics: Mapping[str, float], bad_steps: int) -> MismatchVerdict:
        """Whether generator and learner agree well enough to learn from the batch.

        Args:
            metrics: Of the batch.
            bad_steps: Steps in a row before this one that were bad.

        Raises:
            TrainingError: Too many steps in a row are bad.
        """


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Trained tokens of one microbatch, flat: masked tokens and samples are simply not there.

    All tensors are [N] over the trained tokens; N may be 0. A trajectory is never split over
    microbatches.

    Attributes:
        logprobs: float32, current policy, requires grad; at sampling temperature and filters.
        prev_logprobs: float32, the learner's before the update.
        generation_logprobs: float32, the generator's.
        ref_logprobs: float32, the reference policy's at sampling temperature, unfiltered; None
            without a KL penalty.
        advantages: float32.
        weights: float32, importance-sampling correction (1 where there is none).
        trajectory: int64 in 0 .. num_trajectories - 1, ascending.
        num_trajectories: Trajectories in this microbatch.
        total_tokens: Trained tokens of the whole minibatch over all microbatches and ranks.
        total_trajectories: Trajectories with a trained token in the whole minibatch.
        unfiltered_logprobs: float32, current policy, requires grad; at sampling temperature
            without top-k and top-p, to be compared with the reference. None: as ``logprobs``.
    """

    logprobs: Tensor
    prev_logprobs: Tensor
    generation_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    weights: Tensor
    trajectory: Tensor
    num_trajectories: int
    total_tokens: int
    total_trajectories: int
    unfiltered_logprobs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossOutput:
    """A microbatch's share of the minibatch's loss.

    Attributes:
        loss: float32 scalar; shares add up to the minibatch's loss whatever the split.
        metrics: Shares of the minibatch's value of each declared metric; they add up as well.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


@dataclass(kw_only=True, slots=True)
class Loss(Checked, ABC):
    """The objective of an optimizer step.

    Attributes:
        needs_advantage: Whether a trajectory with advantage 0 never has a gradient, but for that of
            the KL penalty; such trajectories are then spared the backward pass.
    """

    needs_advantage: ClassVar[bool] = False

    reference_policy_kl_penalty: float = setting(ge=0)

    @abstractmethod
    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The share of the loss that this microbatch contributes."""
