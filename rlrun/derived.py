# SPDX-License-Identifier: Apache-2.0
"""What follows from a configuration: settings of the parts, and the plan in words. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.advantage.group import GroupAdvantage
from rlrun.config.schema import RunConfig
from rlrun.console.counted import counted
from rlrun.grpo.async_ import AsyncGRPO
from rlrun.interfaces import GeneratorInputs, Weights
from rlrun.prompts import PromptStream
from rlrun.rollout import RolloutSettings
from rlrun.scheduler.settings import OnAgeLimit, SchedulerSettings
from rlrun.types import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rlrun.rendering.renderer import Renderer


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
    on_policy = SchedulerSettings(
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
    if not isinstance(grpo, AsyncGRPO):
        return on_policy
    return replace(
        on_policy,
        max_age=grpo.max_trajectory_age_steps,
        in_flight_batches=grpo.in_flight_batches,
        on_age_limit=grpo.on_age_limit,
        max_expiries=grpo.max_expiries,
    )


def plan_in_words(config: RunConfig, stream: PromptStream) -> list[str]:
    """What the run will do, a sentence a line."""
    grpo, policy = config.grpo, config.policy
    prompts, samples = grpo.num_prompts_per_step, grpo.num_generations_per_prompt
    trajectories = prompts * samples
    updates = -(-trajectories // (policy.train_global_batch_size or trajectories))
    tokens = trajectories * config.generation.max_new_tokens
    limit, in_all = grpo.max_num_steps, ""
    steps = "an open number of steps" if limit is None else counted(limit, "step")
    if stream.total is not None:
        in_all = f", at most {counted(stream.total, 'prompt')} in all (grpo.max_num_epochs)"
        enough_for = -(-stream.total // prompts)
        if limit is None or enough_for < limit:
            steps = f"at most {counted(enough_for, 'step')}"
    lines = [
        f"{steps} of {counted(prompts, 'prompt')} x {counted(samples, 'sample')} = "
        f"{counted(trajectories, 'trajectory', 'trajectories')} (up to "
        f"{counted(tokens, 'sampled token')}) and {counted(updates, 'optimizer update')} each",
        f"{counted(stream.len_per_epoch, 'prompt')} per epoch{in_all}; model {policy.model}",
    ]
    lines += _async_in_words(config, scheduler_settings(config, stream))
    return lines + _advantage_in_words(config)


def _advantage_in_words(config: RunConfig) -> list[str]:
    """What to say where rewards that the run itself grades can make an advantage very large."""
    advantage, grpo = config.advantage, config.grpo
    if not isinstance(advantage, GroupAdvantage) or not advantage.unbounded:
        return []
    shaping, effort = grpo.overlong_shaping, grpo.effort
    grading = {
        "grpo.overlong_shaping": shaping.enabled and shaping.penalty > 0,
        "grpo.effort": effort.low_string is not None and effort.low_weight > 0,
    }
    return [
        f"{name} grades rewards by length, and advantage.baseline=leave_one_out divides by the "
        "spread of the other samples: one that differs from others that nearly agree gets an "
        "advantage without a bound; set advantage.clip_low and advantage.clip_high, such as -5 and "
        "5, or advantage.baseline=mean"
        for name, on in grading.items()
        if on
    ]


def _async_in_words(config: RunConfig, settings: SchedulerSettings) -> list[str]:
    """What one age means for this run, and what is derived from it."""
    grpo = config.grpo
    if not isinstance(grpo, AsyncGRPO):
        return []
    at_limit = {
        OnAgeLimit.HOLD: "the step waits for a rollout that would become older",
        OnAgeLimit.MASK: "older tokens get no loss",
        OnAgeLimit.EXPIRE: "a rollout that would become older is done again",
    }[grpo.on_age_limit]
    lines = [
        f"asynchronous: trained tokens are at most {counted(settings.max_age, 'step')} old "
        f"({at_limit}); {counted(settings.max_in_flight, 'prompt')} at once in generation, at most "
        f"{settings.max_outstanding} are generating, waiting or in training"
    ]
    if settings.max_age > 0:
        active = config.correction.active(True)
        lines.append(
            "importance-sampling correction is on"
            if active
            else "WITHOUT importance-sampling correction, as asked for by "
            "correction.allow_stale_without=true: stale tokens are trained as if they were fresh"
        )
    return lines


def is_ordered(config: RunConfig) -> bool:
    """Whether results must not depend on timing: no token is ever stale."""
    return not isinstance(config.grpo, AsyncGRPO) or config.grpo.max_trajectory_age_steps == 0


def recomputes_kv_cache(config: RunConfig) -> bool:
    """Whether running rollouts are read again by new weights."""
    grpo = config.grpo
    return isinstance(grpo, AsyncGRPO) and grpo.recompute_kv_cache_after_weight_updates


def generator_inputs(
    config: RunConfig,
    *,
    model: PreTrainedModel,
    weights: Weights,
    renderer: Renderer,
    num_threads: int,
    folder: Path | None,
    engines_on_gpu: bool = False,
    trained: bool = True,
) -> GeneratorInputs:
    """What a generator is started with, wherever it is.

    Args:
        config: The run.
        model: See ``GeneratorInputs``, as for what is not named here.
        weights: Likewise.
        renderer: Likewise.
        num_threads: Likewise.
        folder: Likewise.
        engines_on_gpu: Likewise.
        trained: Whether the weights change meanwhile; in an evaluation they never do.
    """
    return GeneratorInputs(
        model=model,
        weights=weights,
        policy=config.policy,
        renderer=renderer,
        concurrent=trained and config.grpo.concurrent,
        ordered=(not trained or is_ordered(config)) and not config.env.agents_ask,
        recompute_kv_cache=trained and recomputes_kv_cache(config),
        deterministic=config.deterministic,
        num_threads=num_threads,
        folder=folder,
        engines_on_gpu=engines_on_gpu,
    )


def thread_counts(config: RunConfig, available: int) -> tuple[int, int]:
    """CPU threads of the learner and of a generator beside it.

    Where both compute at once they share the cores; where they take turns each has all of them.
    """
    if config.num_threads is not None:
        return config.num_threads, config.num_threads
    if is_ordered(config) or available == 1:
        return available, available
    return available - available // 2, available // 2


def generator_share(config: RunConfig, available: int) -> float:
    """The share of the machine that generates, where learner and generator compute at once."""
    learner, generator = thread_counts(config, available)
    return generator / (learner + generator)
