# SPDX-License-Identifier: Apache-2.0
"""What a batch says about the run, as declared metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlrun.advantage.group import zero_variance
from rlrun.batch import Batch, Floats
from rlrun.evaluation.validation import is_scored, means_by_name, reward_parts
from rlrun.types import StopReason, Trajectory, TrajectoryGroup


def batch_metrics(
    batch: Batch,
    entropies: Sequence[Floats],
    dropped: Sequence[TrajectoryGroup] = (),
    expired: Sequence[int] = (),
) -> dict[str, float]:
    """Metrics of the samples of a step, before its update.

    Rewards, lengths and turns are those of everything that was generated for the step, groups that
    dynamic sampling dropped included: the ones that are left say little about how good the policy
    is. A mean over nothing is left out rather than made up. Rewards that measure nothing, as the
    environment says, are in no mean.

    Args:
        batch: The batch.
        entropies: Of each sample's tokens, in the order of ``batch.samples``.
        dropped: Groups that finished for this step and are not trained.
        expired: Sampled tokens of each group that was given up for its age meanwhile.
    """
    groups = [*batch.groups, *dropped]
    finished = [trajectory for group in groups for trajectory in group.trajectories]
    scored = [trajectory for trajectory in finished if trajectory.reward is not None]
    values = {
        "train/zero_variance_groups": float(count_zero_variance(batch) + len(dropped)),
        "train/dropped_groups": float(len(dropped)),
        "train/masked_samples": float(sum(s.masked is not None for s in batch.samples)),
        "rollout/failed_samples": float(len(finished) - len(scored)),
        "rollout/verifier_timeouts": float(sum(t.verifier_timeout for t in finished)),
    }
    if finished:
        turns = [trajectory.turns for trajectory in finished]
        values["rollout/turns"] = float(sum(turns))
        values["rollout/turns_mean"] = _mean(turns)
        values["rollout/turns_max"] = float(max(turns))
    if scored:
        values |= _scored_metrics(scored)
    values |= agent_metrics(finished)
    shaped = [s.reward for s in batch.samples if s.reward is not None]
    if shaped:
        values["train/shaped_reward_mean"] = _mean(shaped)
    if batch.trained:
        advantages = [s.advantage for s in batch.trained]
        values["train/advantage_mean"] = _mean(advantages)
        values["train/advantage_std"] = float(np.std(advantages))
        trained = [e for s, e in zip(batch.samples, entropies, strict=True) if s.masked is None]
        values["train/entropy"] = float(np.concatenate(trained).mean(dtype=np.float64))
        values["rollout/length_bias"] = _length_bias(scored, batch, expired)
    return values


def _scored_metrics(scored: Sequence[Trajectory]) -> dict[str, float]:
    lengths = [trajectory.num_sampled for trajectory in scored]
    values = {
        "train/prompt_tokens_mean": _mean([t.input_length for t in scored]),
        "train/response_tokens_mean": _mean(lengths),
        "train/truncated_fraction": _mean([t.truncated for t in scored]),
        "rollout/response_tokens_min": float(min(lengths)),
        "rollout/response_tokens_max": float(max(lengths)),
    }
    measured = [trajectory for trajectory in scored if is_scored(trajectory)]
    if measured:
        rewards = _rewards(measured)
        values["train/reward_mean"] = _mean(rewards)
        values["rollout/reward_min"], values["rollout/reward_max"] = min(rewards), max(rewards)
    return values | reward_parts(measured, "reward")


def _rewards(trajectories: Sequence[Trajectory]) -> list[float]:
    return [float(trajectory.reward or 0.0) for trajectory in trajectories]


def agent_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What agents did, each by itself; a mean over nothing is left out."""
    values: dict[str, float] = {}
    for agent in sorted({t.agent for t in trajectories if t.agent is not None}):
        stage = f"agent/{agent}"
        own = [t for t in trajectories if t.agent == agent and t.reward is not None]
        values[f"{stage}/samples"] = float(len(own))
        values[f"{stage}/flagged"] = float(sum(t.flagged for t in own))
        if not own:
            continue
        turns = [t.turns for t in own]
        measured = [t for t in own if is_scored(t)]
        if measured:
            values[f"{stage}/reward_mean"] = _mean(_rewards(measured))
        values[f"{stage}/turns_mean"] = _mean(turns)
        values[f"{stage}/turn_tokens_mean"] = sum(t.num_sampled for t in own) / max(sum(turns), 1)
        for name, reason in _ENDS.items():
            values[f"{stage}/{name}_fraction"] = _mean([t.stop_reason is reason for t in own])
        values |= reward_parts(measured, f"{stage}/reward")
        values |= means_by_name([t.measures for t in own], f"{stage}/told")
    return values


_ENDS = {
    "stopped": StopReason.STOP,
    "length": StopReason.LENGTH,
    "max_turns": StopReason.MAX_TURNS,
}


def count_zero_variance(batch: Batch) -> int:
    """Groups of which no two samples that are trained differ in what the environment gave them."""
    rewards: dict[str, list[float | None]] = {}
    for sample in batch.samples:
        reward = sample.trajectory.reward if sample.masked is None else None
        rewards.setdefault(sample.prompt.group_id, []).append(reward)
    return sum(zero_variance(values) for values in rewards.values())


def age_metrics(batch: Batch) -> dict[str, float]:
    """Ages in steps of the trained tokens: 0 is on-policy."""
    ages, counts = [], []
    for sample in batch.trained:
        for span in sample.trajectory.weight_versions:
            ages.append(batch.step - 1 - span.version)
            counts.append(span.end - span.start)
    if not ages:
        return {}
    return {
        "age/mean": float(np.average(ages, weights=counts)),
        "age/max": float(max(ages)),
    }


def speed_metrics(
    batch: Batch, generated: int, seconds: Mapping[str, float], waited: Mapping[str, float]
) -> dict[str, float]:
    """Tokens per second of the step, and what its parts took.

    Args:
        batch: The batch.
        generated: Tokens of groups that finished during the step.
        seconds: "step" and its parts: "generate" (the trainer waited for a batch), "logprobs",
            "update" (if there was one), "train" (from the batch to its end), "generating" (at least
            one rollout was running) and "validation".
        waited: Seconds that the trainer waited, by cause.
    """
    learned = [s for s in batch.trained if s.has_gradient] if "update" in seconds else []
    trained = sum(s.trajectory.num_sampled for s in learned)
    # A step that validates trains no slower.
    step = seconds["step"] - seconds["validation"]
    generator_idle = max(0.0, step - seconds["generating"])
    return {
        "perf/step_s": seconds["step"],
        "perf/exposed_generation_s": seconds["generate"],
        "perf/generation_s": seconds["generating"],
        "perf/logprobs_s": seconds["logprobs"],
        "perf/update_s": seconds.get("update", 0.0),
        "perf/generated_tokens_per_s": generated / max(seconds["generating"], 1e-9),
        "perf/trained_tokens_per_s": trained / max(step, 1e-9),
        "idle/trainer_s": seconds["generate"],
        "idle/generator_s": generator_idle,
        "idle/generator_s/training": generator_idle,
    } | {f"idle/trainer_s/{cause}": value for cause, value in sorted(waited.items())}


def overlap_metrics(
    batch: Batch, seconds: Mapping[str, float], tokens_per_s: float, share: float
) -> dict[str, float]:
    """How near the step came to what its two pools could do, and to a schedule in turns.

    With g and t the seconds of generating and of training the batch, and the pools' shares of the
    machine s and 1 - s: in turns on the same pools a step takes at least g + t, in turns on the
    whole machine s * g + (1 - s) * t, and no schedule needs less than the latter. The efficiency
    counts tokens that gave a gradient, the other ratios all of them (see docs/async.md). Waiting
    for stragglers, which turns need as well, is in none of them: they are lower bounds.

    Args:
        batch: The batch.
        seconds: As for ``speed_metrics``.
        tokens_per_s: Of generation while something was running.
        share: Of the machine, that generates.
    """
    lengths = [s.trajectory.num_sampled + s.stale_tokens for s in batch.samples]
    if not lengths or tokens_per_s <= 0:
        return {}
    generation, training = sum(lengths) / tokens_per_s, seconds["train"]
    step = max(seconds["step"] - seconds["validation"], 1e-9)
    whole = share * generation + (1 - share) * training
    useful = sum(s.trajectory.num_sampled for s in batch.trained if s.has_gradient)
    return {
        "perf/ceiling_efficiency": whole / step * useful / max(sum(lengths), 1),
        "perf/speedup_over_sync": (generation + training) / step,
        "perf/per_gpu_over_sync": whole / step,
        "perf/straggler_stretch": max(lengths) / max(_mean(lengths), 1e-9),
    }


def _length_bias(finished: Sequence[Trajectory], batch: Batch, expired: Sequence[int]) -> float:
    """Mean length of trained over finished samples: 1 when nothing is picked by length.

    Groups that were given up for their age count with what they had, or their loss, which is that
    of the longest answers, would go unseen.
    """
    samples = len(batch.groups[0].trajectories)
    lengths = [float(trajectory.num_sampled) for trajectory in finished]
    lengths += [tokens / samples for tokens in expired for _ in range(samples)]
    trained = _mean([s.trajectory.num_sampled for s in batch.trained])
    return trained / max(_mean(lengths), 1e-9)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.asarray(values, dtype=np.float64)))
