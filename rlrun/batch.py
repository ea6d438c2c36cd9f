# SPDX-License-Identifier: Apache-2.0
"""From trajectory groups to what the learner trains on: rewards, masks, advantages, minibatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rlrun.advantage.group import zero_variance
from rlrun.interfaces import GRPO, Advantage
from rlrun.rewards import overlong_penalty, scale
from rlrun.types import Prompt, Trajectory, TrajectoryGroup

Floats = NDArray[np.float32]
RewardOf = Callable[[Prompt, Trajectory], "float | None"]


class Masked(StrEnum):
    """Why a sample is left out of the loss and of its group's baseline."""

    FAILED = "failed"
    """Generation or the environment failed: there is no reward."""
    FLAGGED = "flagged"
    """The environment says that its reward measures nothing."""
    EMPTY = "empty"
    """Nothing was sampled, so nothing can be trained."""
    OVERLONG = "overlong"
    """Truncated, with ``grpo.overlong_filtering``."""
    STALE = "stale"
    """Every token is older than ``grpo.max_trajectory_age_steps``, with ``on_age_limit=mask``."""
    LOGPROB_ERROR = "logprob_error"
    """Learner and generator disagree beyond ``grpo.seq_logprob_error_threshold``."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory of a batch with everything that training adds to it.

    The arrays are float32 over the sampled tokens of the trajectory, in order.

    Attributes:
        prompt: Its prompt; samples of one ``prompt.group_id`` form a group.
        trajectory: The tokens; those that are too old to be trained are not in its loss mask.
        reward: After scaling and shaping; None if the environment gave none.
        masked: Why the sample is out, or None if it is trained.
        generation_logprobs: From the generator.
        prev_logprobs: From the learner, before this step's update.
        weights: Importance-sampling correction; 1 where there is none.
        ref_logprobs: From the reference policy; None without a KL penalty.
        advantage: The same for every token; 0 where masked.
        turn_advantages: Advantages that replace it for some turns, as (start, end, advantage) over
            the sampled tokens.
        stale_tokens: Sampled tokens that are too old.
    """

    prompt: Prompt
    trajectory: Trajectory
    reward: float | None
    masked: Masked | None
    generation_logprobs: Floats
    prev_logprobs: Floats
    weights: Floats
    ref_logprobs: Floats | None = None
    advantage: float = 0.0
    turn_advantages: tuple[tuple[int, int, float], ...] = ()
    stale_tokens: int = 0

    @property
    def token_advantages(self) -> Floats:
        """Of each sampled token that is trained."""
        values = np.full(self.trajectory.num_sampled, self.advantage, np.float32)
        for start, end, value in self.turn_advantages:
            values[start:end] = value
        return values

    @property
    def has_advantage(self) -> bool:
        """Whether any of its tokens is to become more or less likely."""
        return self.advantage != 0.0 or any(value != 0.0 for _, _, value in self.turn_advantages)

    @property
    def has_gradient(self) -> bool:
        """Whether its policy term has one: a token with an advantage has a weight above 0."""
        return self.has_advantage and bool(np.any(self.token_advantages * self.weights))


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step trains on, in stream order.

    Attributes:
        step: From 1.
        groups: The trajectory groups.
        samples: All their trajectories, group by group.
    """

    step: int
    groups: tuple[TrajectoryGroup, ...]
    samples: tuple[Sample, ...]

    @property
    def trained(self) -> tuple[Sample, ...]:
        """Samples that carry loss."""
        return tuple(sample for sample in self.samples if sample.masked is None)

    @property
    def has_gradient(self) -> bool:
        """Whether any sample is better or worse than its group, and weighs anything."""
        return any(sample.has_gradient for sample in self.samples)

    def minibatches(self, size: int | None) -> list[tuple[Sample, ...]]:
        """The samples in order, ``size`` (None = all) to an optimizer step; the last may be short.

        Masked samples keep their places: what is masked cannot move others between updates.
        """
        size = size or max(1, len(self.samples))
        return [self.samples[i : i + size] for i in range(0, len(self.samples), size)]


def collect_samples(
    groups: Sequence[TrajectoryGroup],
    grpo: GRPO,
    max_new_tokens: int,
    mask_before: int | None = None,
    reward_of: RewardOf | None = None,
) -> list[Sample]:
    """One sample per trajectory; what the learner adds is still zero.

    Args:
        groups: In stream order.
        grpo: Reward scaling, overlong shaping and filtering.
        max_new_tokens: What "overlong" refers to where nothing else is set.
        mask_before: Tokens of weight versions below it get no loss; None masks none.
        reward_of: What is left of the environment's reward; None leaves it as it is.
    """
    samples = []
    for group in groups:
        for trajectory in group.trajectories:
            fresh = without_stale(trajectory, mask_before)
            reward = trajectory.reward
            if reward_of is not None:
                reward = reward_of(group.prompt, trajectory)
            mask = np.asarray(fresh.loss_mask, dtype=np.bool_)
            logprobs = np.asarray(fresh.generation_logprobs, dtype=np.float32)[mask]
            samples.append(
                Sample(
                    prompt=group.prompt,
                    trajectory=fresh,
                    reward=_shaped_reward(reward, trajectory, grpo, max_new_tokens),
                    masked=_masked_at_once(trajectory, fresh, grpo),
                    generation_logprobs=logprobs,
                    prev_logprobs=np.zeros_like(logprobs),
                    weights=np.ones_like(logprobs),
                    stale_tokens=trajectory.num_sampled - fresh.num_sampled,
                )
            )
    return samples


def without_stale(trajectory: Trajectory, mask_before: int | None) -> Trajectory:
    """The trajectory with the tokens of versions below ``mask_before`` taken out of its loss."""
    spans = trajectory.weight_versions
    if mask_before is None or all(span.version >= mask_before for span in spans):
        return trajectory
    stale = np.zeros(len(trajectory.token_ids), dtype=np.bool_)
    for span in spans:
        if span.version < mask_before:
            stale[span.start : span.end] = True
    kept = np.asarray(trajectory.loss_mask, dtype=np.bool_) & ~stale
    logprobs = np.where(kept, trajectory.generation_logprobs, 0.0)
    return replace(
        trajectory,
        loss_mask=tuple(kept.tolist()),
        generation_logprobs=tuple(logprobs.tolist()),
        weight_versions=tuple(span for span in spans if span.version >= mask_before),
    )


def _shaped_reward(
    reward: float | None, trajectory: Trajectory, grpo: GRPO, max_new_tokens: int
) -> float | None:
    if reward is None:
        return None
    penalty = overlong_penalty(trajectory.num_sampled, grpo.overlong_shaping, max_new_tokens)
    return scale(reward, grpo.reward_scaling) + penalty


def _masked_at_once(trajectory: Trajectory, fresh: Trajectory, grpo: GRPO) -> Masked | None:
    """What can be said of a trajectory before any log-prob is known."""
    if trajectory.reward is None:
        return Masked.FAILED
    if trajectory.flagged:
        return Masked.FLAGGED
    if trajectory.num_sampled == 0:
        return Masked.EMPTY
    if fresh.num_sampled == 0:
        return Masked.STALE
    if grpo.overlong_filtering and trajectory.truncated:
        return Masked.OVERLONG
    return None


def lacks_signal(group: TrajectoryGroup, grpo: GRPO) -> bool:
    """Whether a group's rewards, as the environment gave them, are all alike.

    Those of samples that will be out of the baseline say nothing: one that was cut and is filtered
    must not make its siblings, which are equal, a group with signal.
    """
    rewards = [
        t.reward if _masked_at_once(t, t, grpo) is None else None for t in group.trajectories
    ]
    return zero_variance(rewards)


def mask_where(samples: Sequence[Sample], out: Sequence[bool], reason: Masked) -> list[Sample]:
    """Masks the samples that ``out`` names, unless they are masked already."""
    return [
        replace(sample, masked=reason) if is_out and sample.masked is None else sample
        for sample, is_out in zip(samples, out, strict=True)
    ]


def with_advantages(samples: Sequence[Sample], advantage: Advantage) -> list[Sample]:
    """Adds advantages within each group; masked samples get 0 and do not count for the others."""
    groups: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.prompt.group_id, []).append(index)
    rewards = [
        [samples[i].reward if samples[i].masked is None else None for i in members]
        for members in groups.values()
    ]
    result = list(samples)
    for members, values in zip(groups.values(), advantage(rewards), strict=True):
        for index, value in zip(members, values, strict=True):
            result[index] = replace(samples[index], advantage=value)
    return result
