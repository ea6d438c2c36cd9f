# SPDX-License-Identifier: Apache-2.0
"""What follows from a configuration: settings of the parts, and the plan in words. Pure."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.prompts import PromptStream
from rlrun.rollout import RolloutSettings
from rlrun.scheduler.settings import OnAgeLimit, SchedulerSettings
from rlrun.types import Sampling


def longest_prompt(config: RunConfig) -> int:
    """Tokens that a prompt may have, so that at least one can be sampled."""
    room = config.policy.max_total_sequence_length - 1
    return min(room, config.data.max_prompt_tokens or room)


def sampling_of(config: RunConfig, *, training: bool) -> Sampling:
    """Temperature and filters; what validation leaves open is as in training."""
    settings = config.generation
    values = (settings.temperature, settings.top_p, settings.top_k)
    if not training:
        own = (settings.val_temperature, settings.val_top_p, settings.val_top_k)
        values = (
            values[0] if own[0] is None else own[0],
            values[1] if own[1] is None else own[1],
            values[2] if own[2] is None else own[2],
        )
    return Sampling(values[0], values[1], values[2], tuple(settings.stop))


def rollout_settings(config: RunConfig, *, training: bool) -> RolloutSettings:
    """Bounds of a rollout."""
    return RolloutSettings(
        sampling=sampling_of(config, training=training),
        max_new_tokens=config.generation.max_new_tokens,
        max_total_tokens=config.policy.max_total_sequence_length,
        max_turns=config.grpo.max_rollout_turns,
        env_timeout_s=config.grpo.rollout_timeout_s,
        seed=config.grpo.seed,
    )


def scheduler_settings(config: RunConfig, stream: PromptStream) -> SchedulerSettings:
    """What the scheduler is told of the configuration."""
    grpo = config.grpo
    return SchedulerSettings(
        prompts_per_step=grpo.num_prompts_per_step,
        max_age=0,
        in_flight_batches=1,
        on_age_limit=OnAgeLimit.HOLD,
        max_expiries=0,
        max_generation_failures=grpo.max_generation_failures,
        max_attempts=grpo.max_group_attempts,
        max_gen_batches=(
            grpo.dynamic_sampling_max_gen_batches if grpo.use_dynamic_sampling else None
        ),
        rows_per_epoch=stream.len_per_epoch,
        total_positions=stream.total,
        max_steps=grpo.max_num_steps,
    )


def plan_in_words(config: RunConfig, stream: PromptStream) -> list[str]:
    """What the run will do, a sentence a line."""
    grpo, policy = config.grpo, config.policy
    prompts, samples = grpo.num_prompts_per_step, grpo.num_generations_per_prompt
    trajectories = prompts * samples
    updates = -(-trajectories // (policy.train_global_batch_size or trajectories))
    tokens = trajectories * config.generation.max_new_tokens
    steps = (
        "an open number of steps" if grpo.max_num_steps is None else f"{grpo.max_num_steps} steps"
    )
    epochs = "" if stream.total is None else f", at most {stream.total} prompts in all"
    return [
        f"{steps} of {prompts} prompts x {samples} samples = {trajectories} trajectories "
        f"(up to {tokens} sampled tokens) and {updates} optimizer update{'s' * (updates > 1)} each",
        f"{stream.len_per_epoch} prompts per epoch{epochs}; model {policy.model}",
    ]
