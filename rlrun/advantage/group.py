# SPDX-License-Identifier: Apache-2.0
"""Group-relative advantages: a sample's reward against those of the other samples of its prompt.

A = (reward - baseline) / (std + EPSILON), in float64, per trajectory group (GRPO, arXiv 2402.03300,
section 4.1; leave-one-out as in RLOO, arXiv 2402.14740). docs/loss.md has the details.

With the mean baseline |A| <= (n - 1) / sqrt(n) for n samples, whatever their rewards. With
leave-one-out the std is that of the others, and a sample may be any distance away from others that
nearly agree: of the rewards 0, 1, 1, 0.9998 the first gets -8,600. Only EPSILON and the clips bound
that. Rewards of two values, such as right and wrong, cannot: |A| <= sqrt(n) there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rlrun.errors import TrainingError
from rlrun.interfaces import Advantage, component, setting
from rlrun.types import LARGEST_REWARD

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""

CONSTANT_TOLERANCE = 1e-6
"""Rewards whose spread is within this share of the largest magnitude are equal: an environment may
compute in float32, where the same reward twice can differ by 1e-7 of itself."""


class Baseline(StrEnum):
    """What is subtracted from a reward."""

    MEAN = "mean"
    """The mean of the group, the sample itself included."""
    LEAVE_ONE_OUT = "leave_one_out"
    """The mean of the other samples of the group."""
    NONE = "none"
    """Nothing: the advantage is the reward."""


@component("advantage/group")
@dataclass(kw_only=True, slots=True)
class GroupAdvantage(Advantage):
    """Reward minus a baseline of the group, divided by the group's standard deviation if asked."""

    baseline: Baseline
    normalize: bool
    clip_low: float | None = setting(le=0)
    clip_high: float | None = setting(ge=0)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """A standard deviation needs a baseline; a clip must leave something."""
        if self.baseline is Baseline.NONE and self.normalize:
            yield (
                ("baseline", "normalize"),
                "baseline=none with normalize=true divides uncentred rewards by their spread",
                "Set normalize=false, or baseline=mean",
            )
        if self.clip_low == 0 and self.clip_high == 0:
            yield (
                ("clip_low", "clip_high"),
                "clip_low=0 with clip_high=0 makes every advantage 0",
                "Set at least one of them to null or away from 0",
            )

    @property
    def unbounded(self) -> bool:
        """Whether rewards that nearly agree can make an advantage as large as 1 / EPSILON."""
        clipped = self.clip_low is not None and self.clip_high is not None
        return self.baseline is Baseline.LEAVE_ONE_OUT and self.normalize and not clipped

    def __call__(self, groups: Sequence[Sequence[float | None]]) -> list[list[float]]:
        """Advantages of every sample; see the base class.

        Raises:
            TrainingError: A reward is NaN, infinite or beyond LARGEST_REWARD.
        """
        return [self._group(index, rewards) for index, rewards in enumerate(groups)]

    def _group(self, index: int, rewards: Sequence[float | None]) -> list[float]:
        for sample, reward in enumerate(rewards):
            # Written so that NaN, which compares false with everything, is caught as well.
            if reward is not None and not abs(reward) <= LARGEST_REWARD:
                raise TrainingError(
                    f"advantage: group {index}, sample {sample}",
                    f"the reward is {reward}",
                    "A sample without a usable reward is out (a failure), never a number",
                )
        valid = [reward for reward in rewards if reward is not None]
        advantages = iter(self._clip(value) for value in self._valid(valid))
        return [0.0 if reward is None else next(advantages) for reward in rewards]

    def _valid(self, rewards: list[float]) -> list[float]:
        if self.baseline is Baseline.NONE:
            return list(rewards)
        if zero_variance(rewards):
            return [0.0] * len(rewards)
        if self.baseline is Baseline.LEAVE_ONE_OUT:
            return self._leave_one_out(rewards)
        mean, std = _mean_and_std(rewards)
        scale = std + EPSILON if self.normalize else 1.0
        return [(reward - mean) / scale for reward in rewards]

    def _leave_one_out(self, rewards: list[float]) -> list[float]:
        """Baseline and std over the others; the group's std where the others have none."""
        _, group_std = _mean_and_std(rewards)
        advantages = []
        for index, reward in enumerate(rewards):
            others = rewards[:index] + rewards[index + 1 :]
            mean, std = _mean_and_std(others)
            if not self.normalize:
                scale = 1.0
            elif zero_variance(others):
                scale = group_std + EPSILON
            else:
                scale = std + EPSILON
            advantages.append((reward - mean) / scale)
        return advantages

    def _clip(self, advantage: float) -> float:
        if self.clip_low is not None:
            advantage = max(advantage, self.clip_low)
        if self.clip_high is not None:
            advantage = min(advantage, self.clip_high)
        return advantage


def zero_variance(rewards: Sequence[float | None]) -> bool:
    """Whether a group's rewards say nothing about which sample was better.

    True if fewer than two rewards are there (None is out), or if all are equal within
    CONSTANT_TOLERANCE. By the spread rather than by a std of 0, which rounding noise evades. To
    decide whether a group has signal, give it the rewards before shaping: a length penalty makes
    every group look mixed.
    """
    valid = [reward for reward in rewards if reward is not None]
    if not valid:
        return True
    spread = max(valid) - min(valid)
    return spread <= CONSTANT_TOLERANCE * max(abs(reward) for reward in valid)


def _mean_and_std(rewards: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1), in two passes; (value, 0) for one reward.

    fsum rounds once, so the result does not depend on the order of the samples.
    """
    n = len(rewards)
    mean = math.fsum(rewards) / n
    if n < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (n - 1))
