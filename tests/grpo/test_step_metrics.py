# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
from rlrun.metrics import is_declared

from rlrun.batch import Batch, collect_samples, with_advantages
from rlrun.grpo.step_metrics import age_metrics, batch_metrics, reward_parts
from rlrun.types import StopReason, TrajectoryGroup
from tests.factories import config, group, prompt, trajectory

CONFIG = config()


def batch_of(*groups: TrajectoryGroup, step: int = 1) -> Batch:
    samples = with_advantages(collect_samples(groups, CONFIG.grpo, 28), CONFIG.advantage)
    return Batch(step, groups, tuple(samples))


def metrics_of(batch: Batch) -> dict[str, float]:
    return batch_metrics(batch, [np.ones(len(s.prev_logprobs), np.float32) for s in batch.samples])


def test_a_group_of_one_has_metrics_and_no_nan() -> None:
    metrics = metrics_of(batch_of(group([1.0])))
    assert metrics["train/reward_mean"] == 1.0
    assert metrics["train/advantage_std"] == 0.0
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_step_in_which_everything_failed_is_counted_and_invents_no_mean() -> None:
    metrics = metrics_of(batch_of(group([None, None])))
    assert metrics["rollout/failed_samples"] == 2
    assert "train/reward_mean" not in metrics
    assert "train/entropy" not in metrics


def test_failed_samples_do_not_lower_the_mean_reward() -> None:
    assert metrics_of(batch_of(group([1.0, None, 1.0])))["train/reward_mean"] == 1.0


def test_parts_of_the_reward_are_means_over_the_samples_that_have_them() -> None:
    members = (
        trajectory(reward=1.0),
        trajectory(reward=0.0, sample_index=1),
    )
    assert reward_parts(batch_of(TrajectoryGroup(prompt(), members)).samples) == {
        "reward/correct": 0.5
    }


def test_age_is_counted_in_steps_and_by_token() -> None:
    members = (trajectory((8,) * 3, version=4), trajectory((8,), version=2, sample_index=1))
    metrics = age_metrics(batch_of(TrajectoryGroup(prompt(), members), step=5))
    assert metrics == {"age/mean": pytest.approx((3 * 0 + 1 * 2) / 4), "age/max": 2.0}


def test_truncation_is_a_share_of_the_samples() -> None:
    members = (
        trajectory(reward=0.0, stop_reason=StopReason.LENGTH),
        trajectory(reward=1.0, sample_index=1),
    )
    metrics = metrics_of(batch_of(TrajectoryGroup(prompt(), members)))
    assert metrics["train/truncated_fraction"] == 0.5


def test_every_metric_is_declared() -> None:
    batch = batch_of(group([1.0, 0.0, None]))
    assert all(is_declared(name) for name in metrics_of(batch) | age_metrics(batch))
