# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rlrun.batch import Batch, collect_samples, with_advantages
from rlrun.grpo.step_metrics import age_metrics, batch_metrics, overlap_metrics, speed_metrics
from rlrun.metrics.registry import METRICS, is_declared
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


def test_agents_are_told_apart_and_a_failed_sample_is_in_no_mean() -> None:
    ok = partial(trajectory, agent="a", turns=3, measures={"steps": 2.0})
    batch = batch_of(
        TrajectoryGroup(prompt(0), (ok(), ok(reward=0.0, sample_index=1, flagged=True))),
        TrajectoryGroup(prompt(1), (trajectory(reward=0.5, agent="b"),)),
        TrajectoryGroup(prompt(2), (trajectory(reward=None, agent="c"),)),
    )
    found = {name: v for name, v in metrics_of(batch).items() if name.startswith("agent/")}
    assert all(is_declared(name) and math.isfinite(value) for name, value in found.items())
    means = {name: found.get(f"agent/{name}/reward_mean") for name in "abc"}
    assert means == {"a": 1.0, "b": 0.5, "c": None}
    assert [found[f"agent/{name}/samples"] for name in "abc"] == [2, 1, 0]
    assert (found["agent/a/turns_mean"], found["agent/b/turns_mean"]) == (3, 1)
    assert found["agent/a/turn_tokens_mean"] == 2 / 3
    assert (found["agent/a/flagged"], found["agent/a/told/steps"]) == (1, 2)


def test_failed_samples_do_not_lower_the_mean_reward() -> None:
    assert metrics_of(batch_of(group([1.0, None, 1.0])))["train/reward_mean"] == 1.0


def test_a_reward_that_measures_nothing_is_in_no_mean() -> None:
    bad = trajectory(reward=-5.0, sample_index=1, flagged=True, agent="a")
    batch = batch_of(TrajectoryGroup(prompt(), (trajectory(reward=1.0, agent="a"), bad)))
    metrics = metrics_of(batch)
    names = ("train/reward_mean", "rollout/reward_min", "rollout/reward_max", "agent/a/reward_mean")
    assert [metrics[name] for name in names] == [1.0] * 4
    assert metrics["reward/correct"] == metrics["agent/a/reward/correct"] == 1.0
    assert (metrics["agent/a/samples"], metrics["agent/a/flagged"]) == (2, 1)
    alone = metrics_of(batch_of(TrajectoryGroup(prompt(), (bad,))))
    assert not alone.keys() & {*names, "reward/correct", "agent/a/reward/correct"}
    assert alone["train/response_tokens_mean"] == metrics["train/response_tokens_mean"]


def test_parts_of_the_reward_are_means_over_the_samples_that_have_them() -> None:
    members = (
        trajectory(reward=1.0),
        replace(trajectory(reward=0.0, sample_index=1), rewards={"correct": 0.0, "form": 0.5}),
    )
    metrics = metrics_of(batch_of(TrajectoryGroup(prompt(), members)))
    assert (metrics["reward/correct"], metrics["reward/form"]) == (0.5, 0.5)


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


def test_lengths_rewards_and_turns_have_their_extremes() -> None:
    members = (
        trajectory((8,), reward=0.25, turns=1),
        trajectory((8,) * 5, before=(5,) * 7, reward=1.0, sample_index=1, turns=3),
        trajectory((8,) * 9, reward=None, sample_index=2, turns=5),
    )
    metrics = metrics_of(batch_of(TrajectoryGroup(prompt(), members)))
    expected = {
        "rollout/turns": 9.0,
        "rollout/turns_mean": 3.0,
        "rollout/turns_max": 5.0,
        "rollout/response_tokens_min": 1.0,
        "rollout/response_tokens_max": 5.0,
        "rollout/reward_min": 0.25,
        "rollout/reward_max": 1.0,
        "train/prompt_tokens_mean": 5.0,
        "train/response_tokens_mean": 3.0,
    }
    assert {name: metrics[name] for name in expected} == expected


def test_the_mean_advantage_is_that_of_the_trained_trajectories() -> None:
    batch = batch_of(group([1.0, 0.0, None]))
    uneven = [replace(s, advantage=a) for s, a in zip(batch.samples, (3.0, 1.0, 0.0), strict=True)]
    metrics = metrics_of(replace(batch, samples=tuple(uneven)))
    assert (metrics["train/advantage_mean"], metrics["train/advantage_std"]) == (2.0, 1.0)


SECONDS = {
    "step": 4.0,
    "generate": 2.0,
    "generating": 1.5,
    "validation": 0.25,
    "logprobs": 0.5,
    "update": 1.0,
    "train": 1.75,
}
WAITED = {"waiting_groups": 2.0}


def test_only_tokens_with_an_advantage_count_as_trained_per_second() -> None:
    batch = batch_of(group([1.0, 0.0, None]), group([1.0, 1.0, 1.0], 1))
    metrics = speed_metrics(batch, 12, SECONDS, WAITED)
    assert metrics["perf/trained_tokens_per_s"] == 4 / (4.0 - 0.25)
    assert metrics["perf/generated_tokens_per_s"] == 12 / 1.5
    assert metrics["idle/generator_s/training"] == 4.0 - 1.5 - 0.25
    assert metrics["idle/trainer_s/waiting_groups"] == metrics["idle/trainer_s"] == 2.0
    skipped = {name: value for name, value in SECONDS.items() if name != "update"}
    assert speed_metrics(batch, 10, skipped, WAITED)["perf/trained_tokens_per_s"] == 0.0


def test_two_pools_that_never_wait_are_at_the_ceiling() -> None:
    """Generating and training the batch take as long as the step: nothing could be faster."""
    batch = batch_of(group([1.0, 0.0]))
    tokens = sum(s.trajectory.num_sampled for s in batch.samples)
    seconds = {"step": 4.0, "validation": 0.0, "train": 4.0}
    metrics = overlap_metrics(batch, seconds, tokens / 4.0, share=0.5)
    assert metrics["perf/ceiling_efficiency"] == pytest.approx(1.0)
    assert metrics["perf/speedup_over_sync"] == pytest.approx(2.0)
    assert metrics["perf/per_gpu_over_sync"] == pytest.approx(1.0)


def test_idle_time_and_waste_lower_the_efficiency() -> None:
    batch = batch_of(group([1.0, 0.0]), group([1.0, 1.0], 1))
    tokens = sum(s.trajectory.num_sampled for s in batch.samples)
    seconds = {"step": 5.0, "validation": 1.0, "train": 1.0}
    metrics = overlap_metrics(batch, seconds, tokens / 2.0, share=0.25)
    assert metrics["perf/per_gpu_over_sync"] == pytest.approx((0.25 * 2 + 0.75 * 1) / 4)
    assert metrics["perf/ceiling_efficiency"] == pytest.approx((0.25 * 2 + 0.75 * 1) / 4 / 2)
    assert metrics["perf/speedup_over_sync"] == pytest.approx(3 / 4)


def test_every_metric_is_declared() -> None:
    batch = batch_of(group([1.0, 0.0, None]))
    metrics = metrics_of(batch) | age_metrics(batch) | speed_metrics(batch, 12, SECONDS, WAITED)
    assert all(is_declared(name) for name in metrics)


def test_every_declared_metric_of_a_batch_is_there() -> None:
    batch = batch_of(group([1.0, 0.0]))
    logged = metrics_of(batch) | speed_metrics(batch, 12, SECONDS, WAITED)
    elsewhere = {
        *("train/loss", "train/policy_loss", "train/kl_to_reference", "train/ratio_mean"),
        *("train/ratio_clipped_fraction", "train/grad_norm", "train/lr", "train/skipped_update"),
        *("rollout/failed_groups", "perf/checkpoint_s", "perf/peak_memory_gib"),
    }
    declared = {
        name
        for name, metric in METRICS.items()
        if name.startswith(("train/", "rollout/", "perf/", "idle/")) and not metric.only
    }
    assert declared - elsewhere == {name for name in logged if not name.startswith("reward/")}


def test_groups_without_a_gradient_are_counted_by_what_is_not_masked() -> None:
    equal = (trajectory(reward=1.0), trajectory(reward=1.0, sample_index=1))
    flagged = trajectory(reward=0.0, sample_index=2, flagged=True)
    batch = batch_of(TrajectoryGroup(prompt(0), (*equal, flagged)), group([1.0, 0.0, 1.0], 1))
    assert [s.has_advantage for s in batch.samples] == [False] * 3 + [True] * 3
    assert metrics_of(batch)["train/zero_variance_groups"] == 1


def test_long_answers_that_expire_show_in_the_length_bias() -> None:
    batch = batch_of(group([1.0, 0.0], sampled=(8,) * 3), group([1.0, 0.0], 1, sampled=(8,) * 5))
    entropies = [np.ones(len(s.prev_logprobs), np.float32) for s in batch.samples]
    assert batch_metrics(batch, entropies)["rollout/length_bias"] == 1.0
    # Two groups of two samples were called off when these had 12 tokens each on average.
    metrics = batch_metrics(batch, entropies, expired=[20, 28])
    assert metrics["rollout/length_bias"] == pytest.approx(4 / 8)


def test_groups_that_dynamic_sampling_dropped_count_in_what_the_policy_is_worth() -> None:
    batch = batch_of(group([1.0, 0.0]))
    entropies = [np.ones(len(s.prev_logprobs), np.float32) for s in batch.samples]
    dropped = [group([1.0, 1.0], position) for position in (1, 2, 3)]
    metrics = batch_metrics(batch, entropies, dropped)
    assert metrics["train/reward_mean"] == 7 / 8
    assert metrics["train/zero_variance_groups"] == 3
    assert metrics["train/dropped_groups"] == 3
