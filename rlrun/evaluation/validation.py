# SPDX-License-Identifier: Apache-2.0
"""Validation: every prompt of a set exactly once, at one weight version."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.console.counted import counted
from rlrun.rollout import Job, RolloutRunner
from rlrun.types import Prompt, Trajectory, TrajectoryGroup

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outcome of one validation.

    Attributes:
        metrics: ``validation/*``; empty if every sample failed.
        groups: What was generated, for the record.
    """

    metrics: dict[str, float]
    groups: list[TrajectoryGroup] = field(repr=False)


class Evaluator:
    """Runs a fixed set of prompts."""

    def __init__(
        self, rollout: RolloutRunner, prompts: Sequence[Prompt], batch_size: int, num_samples: int
    ) -> None:
        """Keeps the parts.

        Args:
            rollout: With the sampling of validation.
            prompts: The whole set.
            batch_size: Prompts that are generated at once.
            num_samples: Samples per prompt.
        """
        self.rollout, self.prompts = rollout, prompts
        self.batch_size, self.num_samples = batch_size, num_samples

    async def run(self) -> Evaluation:
        """Evaluates the generator's present weights."""
        groups: list[TrajectoryGroup] = []
        for start in range(0, len(self.prompts), self.batch_size):
            prompts = self.prompts[start : start + self.batch_size]
            groups += await self.rollout.run([Job(p, self.num_samples) for p in prompts])
        return Evaluation(validation_metrics(groups, self.num_samples), groups)


def accuracy_of(trajectory: Trajectory) -> float:
    """The reward part "correct" where the environment names one, else the reward; scored only."""
    return trajectory.rewards.get("correct", trajectory.reward or 0.0)


def is_scored(trajectory: Trajectory) -> bool:
    """Whether a sample has a reward, and one that measures something."""
    return trajectory.reward is not None and not trajectory.flagged


def validation_metrics(groups: Sequence[TrajectoryGroup], num_samples: int) -> dict[str, float]:
    """Means over all samples that ``is_scored`` says yes of; the others are counted, not guessed.

    Accuracy is the mean of ``accuracy_of``. pass_k is the share of prompts with at least one
    sample of accuracy above 0; a prompt without a scored sample is out of it, since nothing is
    known of it.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    scored = [t for t in trajectories if is_scored(t)]
    failed = len(trajectories) - len(scored)
    if not scored:
        log.warning("validation: there is no accuracy: %s", why_unscored(trajectories))
        return {"validation/failed_samples": float(failed)}
    correct = {id(t): accuracy_of(t) for t in scored}
    metrics = {
        "validation/accuracy": sum(correct.values()) / len(scored),
        "validation/reward_mean": sum(t.reward or 0.0 for t in scored) / len(scored),
        "validation/response_tokens_mean": sum(t.num_sampled for t in scored) / len(scored),
        "validation/truncated_fraction": sum(t.truncated for t in scored) / len(scored),
        "validation/samples": float(len(scored)),
        "validation/failed_samples": float(failed),
    }
    if num_samples > 1:
        known = [[correct[id(t)] for t in g.trajectories if id(t) in correct] for g in groups]
        solved = [any(value > 0 for value in values) for values in known if values]
        metrics["validation/pass_k"] = sum(solved) / len(solved)
    return metrics | reward_parts(scored, "validation/reward")


def why_unscored(trajectories: Sequence[Trajectory]) -> str:
    """What became of samples of which none has a reward that measures something."""
    failed = [t for t in trajectories if t.reward is None]
    reasons = []
    if flagged := len(trajectories) - len(failed):
        reasons.append(f"{flagged} flagged by the environment, their reward measures nothing")
    if failed:
        told = [f", the first: {t.failure.message}" for t in failed if t.failure is not None]
        reasons.append(f"{len(failed)} failed" + "".join(told[:1]))
    samples = counted(len(trajectories), "sample")
    return f"not one of {samples} could be scored: {'; '.join(reasons)}"


def reward_parts(trajectories: Sequence[Trajectory], stage: str) -> dict[str, float]:
    """The mean of each named part of the reward, as ``<stage>/<part>``, over those that have it."""
    return means_by_name([trajectory.rewards for trajectory in trajectories], stage)


def means_by_name(numbers: Sequence[Mapping[str, float]], stage: str) -> dict[str, float]:
    """The mean of each named number, as ``<stage>/<name>``, over those who have it."""
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for named in numbers:
        for name, value in named.items():
            parts[f"{stage}/{name}"].append(value)
    return {name: math.fsum(values) / len(values) for name, values in sorted(parts.items())}
