# SPDX-License-Identifier: Apache-2.0
"""Rules on what a step trains and by which objective: sizes, baseline, correction, penalties."""

from __future__ import annotations

from rlrun.config.rules.rule import rule
from rlrun.console.counted import counted


@rule(
    "grpo.max_trajectory_age_steps",
    "correction.enabled",
    "correction.allow_stale_without",
    remedy=(
        "Set correction.enabled=null, or the age to 0; to train so all the same, set "
        "correction.allow_stale_without=true"
    ),
)
def _stale_is_corrected(age: int, enabled: bool | None, allowed: bool) -> str | None:
    if age == 0 or enabled is not False or allowed:
        return None
    return (
        f"correction.enabled=false with grpo.max_trajectory_age_steps={age}: tokens of old weights "
        "would be trained as if they were fresh"
    )


@rule(
    "grpo.num_prompts_per_step",
    "grpo.num_generations_per_prompt",
    "policy.train_global_batch_size",
    remedy="Set policy.train_global_batch_size to a divisor, or to null for one update per step",
)
def _batch_divides(prompts: int, generations: int, update: int | None) -> str | None:
    batch = prompts * generations
    if update is None or batch % update == 0:
        return None
    size = (
        f"{counted(prompts, 'prompt')} x {counted(generations, 'generation')} = "
        f"{counted(batch, 'trajectory', 'trajectories')} per step"
    )
    if update > batch:
        return f"{size} are fewer than policy.train_global_batch_size={update}"
    return (
        f"{size} cannot be divided into updates of policy.train_global_batch_size={update}: "
        f"{batch} % {update} = {batch % update}"
    )


@rule(
    "policy.train_micro_batch_tokens",
    "policy.max_total_sequence_length",
    remedy="Raise policy.train_micro_batch_tokens to the longest trajectory, or shorten it",
)
def _trajectory_fits_microbatch(microbatch: int, longest: int) -> str | None:
    if microbatch >= longest:
        return None
    return (
        f"policy.train_micro_batch_tokens={microbatch} has no room for a trajectory of "
        f"policy.max_total_sequence_length={longest}: {microbatch} // {longest} = 0"
    )


@rule(
    "generation.max_new_tokens",
    "policy.max_total_sequence_length",
    remedy="Lower generation.max_new_tokens (equal is legal), or raise the length",
)
def _response_fits_context(response: int, context: int) -> str | None:
    if response <= context:
        return None
    return (
        f"generation.max_new_tokens={response} is above policy.max_total_sequence_length={context}"
    )


@rule(
    "grpo.num_generations_per_prompt",
    "advantage.baseline",
    "advantage.normalize",
    remedy="Raise grpo.num_generations_per_prompt, or set baseline=none and normalize=false",
)
def _baseline_needs_group(generations: int, baseline: str, normalize: bool) -> str | None:
    if generations > 1 or (baseline == "none" and not normalize):
        return None
    return (
        "a group of one trajectory has only advantages of 0 with "
        f"advantage.baseline={baseline} and advantage.normalize={str(normalize).lower()}"
    )


@rule(
    "grpo.use_dynamic_sampling",
    "grpo.num_generations_per_prompt",
    remedy="Raise grpo.num_generations_per_prompt, or set grpo.use_dynamic_sampling=false",
)
def _dynamic_sampling_needs_group(enabled: bool, generations: int) -> str | None:
    if not enabled or generations > 1:
        return None
    return "dynamic sampling would replace every group: one trajectory alone has no spread"


@rule(
    "loss.reference_policy_kl_penalty",
    "grpo.skip_reference_policy_logprobs_calculation",
    remedy="Set the penalty to 0, or do not skip the reference policy",
)
def _reference_is_computed(penalty: float, skipped: bool) -> str | None:
    if penalty == 0 or not skipped:
        return None
    return (
        f"loss.reference_policy_kl_penalty={penalty} needs the reference policy's log-probs, but "
        "grpo.skip_reference_policy_logprobs_calculation=true"
    )


@rule(
    "grpo.overlong_shaping.enabled",
    "grpo.overlong_shaping.max_response_tokens",
    remedy="Set max_response_tokens, usually to generation.max_new_tokens",
)
def _shaping_has_length(enabled: bool, longest: int | None) -> str | None:
    if enabled and longest is None:
        return "overlong shaping is enabled without grpo.overlong_shaping.max_response_tokens"
    return None


@rule(
    "grpo.invalid_tool_call_advantage",
    "generation.expose_http_server",
    "generation.http.tool_parser",
    remedy=(
        "Set generation.expose_http_server=true and generation.http.tool_parser, or leave it null"
    ),
)
def _calls_are_parsed(advantage: float | None, exposed: bool, parser: str | None) -> str | None:
    if advantage is None or (exposed and parser is not None):
        return None
    return (
        f"grpo.invalid_tool_call_advantage={advantage} has no effect: nothing parses calls of tools"
    )
