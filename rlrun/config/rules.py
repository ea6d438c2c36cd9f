# SPDX-License-Identifier: Apache-2.0
"""What keys must say together: each rule an id, the keys, a check of their values, a remedy.

A check says what is wrong with the values of its keys, or returns None; ``rule`` names the keys
and the remedy. What a run breaks is reported in the order in which the rules stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.config.duration import parse_duration
from rlrun.config.model_words import (
    CAUSAL_MODELS,
    NO_ROUTERS,
    is_recurrent,
    missing_routers,
    not_causal,
    words_of,
)
from rlrun.config.paths import conf_dir, is_file
from rlrun.config.suggest import nearest
from rlrun.counted import counted
from rlrun.metrics import why_never_logged

STOP_METRICS = ("validation/accuracy", "validation/reward_mean", "validation/pass_k")

Check = Callable[..., str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: Its name, for tests and documentation.
        keys: The keys it is about. It holds where the chosen variants lack one of them.
        check: Takes the keys' values in order; says what is wrong, or None.
        remedy: What to write instead.
    """

    id: str
    keys: tuple[str, ...]
    check: Check
    remedy: str


RULES: list[Rule] = []
"""All rules, filled by ``rule``."""


def rule(*keys: str, remedy: str) -> Callable[[Check], Check]:
    """Makes a check of the values of ``keys`` a rule that has the check's name."""

    def add(check: Check) -> Check:
        RULES.append(Rule(check.__name__.removeprefix("_"), keys, check, remedy))
        return check

    return add


def broken_rules(values: Mapping[str, Any]) -> list[tuple[Rule, str]]:
    """The rules that the values of a run break, each with what is wrong."""
    broken = []
    for candidate in RULES:
        if all(key in values for key in candidate.keys):
            what = candidate.check(*(values[key] for key in candidate.keys))
            if what is not None:
                broken.append((candidate, what))
    return broken


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
    "grpo.max_num_steps",
    "grpo.max_num_epochs",
    remedy="Set one of them",
)
def _run_ends(steps: int | None, epochs: int | None) -> str | None:
    if steps is None and epochs is None:
        return "the run has no end: grpo.max_num_steps and grpo.max_num_epochs are both null"
    return None


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
    "grpo.val_period",
    "grpo.val_at_start",
    "grpo.val_at_end",
    "data.validation.source",
    remedy="Set data.validation.source, or val_period=0 and val_at_start and val_at_end to false",
)
def _validation_has_rows(
    period: int, at_start: bool, at_end: bool, source: str | None
) -> str | None:
    if source is not None or not (period > 0 or at_start or at_end):
        return None
    return "the run validates, but data.validation.source is null"


@rule(
    "grpo.stop_at_validation_metric",
    "grpo.stop_at_validation_threshold",
    remedy="Set both, or both to null",
)
def _stop_is_complete(metric: str | None, threshold: float | None) -> str | None:
    if (metric is None) == (threshold is None):
        return None
    if metric is None:
        return f"grpo.stop_at_validation_threshold={threshold} has no stop_at_validation_metric"
    return f"grpo.stop_at_validation_metric={metric} has no stop_at_validation_threshold"


@rule(
    "grpo.stop_at_validation_metric",
    "grpo.val_num_generations_per_prompt",
    remedy=f"Choose one of {', '.join(STOP_METRICS)}",
)
def _stop_metric_exists(metric: str | None, samples: int) -> str | None:
    if metric is None:
        return None
    if metric not in STOP_METRICS:
        near = nearest(metric, STOP_METRICS)[0]
        return f"there is no validation metric {metric} to stop at; did you mean {near}"
    if metric == "validation/pass_k" and samples == 1:
        return "validation/pass_k needs grpo.val_num_generations_per_prompt above 1"
    return None


@rule(
    "grpo.stop_at_validation_metric",
    "grpo.val_period",
    remedy="Set grpo.val_period above 0",
)
def _stop_is_validated(metric: str | None, period: int) -> str | None:
    if metric is None or period > 0:
        return None
    return (
        f"grpo.stop_at_validation_metric={metric}, but with grpo.val_period=0 no validation comes "
        "at a time when it could end the run"
    )


@rule(
    "checkpointing.metric",
    "grpo.val_num_generations_per_prompt",
    "loss.reference_policy_kl_penalty",
    remedy="Take a name from docs/metrics.md, such as validation/accuracy, or null",
)
def _checkpoint_metric_is_logged(metric: str | None, samples: int, penalty: float) -> str | None:
    if metric is None:
        return None
    what = why_never_logged(metric)
    if what is not None:
        return f"checkpointing.metric={what}"
    if metric == "validation/pass_k" and samples == 1:
        return "validation/pass_k needs grpo.val_num_generations_per_prompt above 1"
    if metric == "train/kl_to_reference" and penalty == 0:
        return "train/kl_to_reference needs loss.reference_policy_kl_penalty above 0"
    return None


@rule(
    "checkpointing.metric",
    "grpo.val_period",
    "grpo.val_at_end",
    remedy="Set grpo.val_period, or choose a train/ metric",
)
def _checkpoint_metric_is_validated(metric: str | None, period: int, at_end: bool) -> str | None:
    if metric is None or not metric.startswith("validation/") or period > 0 or at_end:
        return None
    return f"checkpointing.metric={metric}, but the run never validates what it saves"


@rule(
    "checkpointing.checkpoint_must_save_by",
    "checkpointing.enabled",
    remedy="Set checkpointing.enabled=true, or the deadline to null",
)
def _deadline_saves(deadline: str | None, enabled: bool) -> str | None:
    if deadline is None or enabled:
        return None
    return (
        f"checkpointing.checkpoint_must_save_by={deadline} would end the run unsaved, since "
        "checkpointing.enabled=false"
    )


@rule(
    "checkpointing.checkpoint_must_save_by",
    remedy="Write days, hours, minutes and seconds, such as 00:03:40:00",
)
def _duration_is_readable(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        parse_duration(text)
    except ValueError as error:
        return f"checkpointing.checkpoint_must_save_by={text} {error}"
    return None


@rule(
    "grpo.max_trajectory_age_steps",
    "cluster.colocated",
    "cluster.num_learner_ranks",
    "cluster.num_engines",
    remedy="Set cluster.colocated=false, or grpo=sync",
)
def _colocated_takes_turns(age: int, colocated: bool, ranks: int, engines: int) -> str | None:
    if not colocated:
        return None
    what = "cluster.colocated=true lets learner and engines share what they compute on, but with "
    what += "grpo=async they work at once"
    places = max(ranks, engines)
    if places == 1:
        return what
    split = f"cluster.num_learner_ranks={places - places // 2} cluster.num_engines={places // 2}"
    return f"{what}; apart, {split} would fit where they are"


@rule(
    "generation.num_engines",
    "generation.tensor_parallel_size",
    "cluster.num_engines",
    remedy="Set both to 1, and cluster.num_engines to the engines that there are to be",
)
def _engine_fits_its_place(num_engines: int, tensor_parallel_size: int, engines: int) -> str | None:
    if num_engines == tensor_parallel_size == 1:
        return None
    return (
        f"generation.num_engines={num_engines} and generation.tensor_parallel_size="
        f"{tensor_parallel_size} are for each of cluster.num_engines={engines} Ray actors, which "
        "has one place, and so one GPU"
    )


@rule(
    "checkpointing.layout",
    "policy.lora.enabled",
    remedy="Set checkpointing.layout=whole",
)
def _adapters_are_whole(layout: str, enabled: bool) -> str | None:
    if layout == "whole" or not enabled:
        return None
    return (
        f"checkpointing.layout={layout} with policy.lora.enabled=true: an adapter is one small file"
    )


@rule(
    "env.max_retries",
    "generation.expose_http_server",
    remedy="Set generation.expose_http_server=true",
)
def _agents_find_the_policy(retries: int, exposed: bool) -> str | None:
    if exposed:
        return None
    return "env=gym with generation.expose_http_server=false: agents could not ask the policy"


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


@rule(
    "policy.model",
    remedy="Write policy/model=NAME to choose it; a folder of that name is ./NAME",
)
def _model_is_no_choice(model: str) -> str | None:
    if "/" not in model and is_file(conf_dir() / "policy" / "model" / f"{model}.yaml"):
        return f"policy.model={model} is the name of a choice, not of a model"
    return None


@rule("policy.model", "policy.architecture", remedy=CAUSAL_MODELS)
def _model_continues_a_text(model: str, architecture: Mapping[str, Any]) -> str | None:
    kind = not_causal(words_of(model, architecture) or {})
    said = "by policy.architecture " if architecture else ""
    return None if kind is None else f"{said}policy.model={model} is {kind}"


@rule(
    "policy.freeze_moe_router",
    "policy.moe_router_fp32",
    "policy.model",
    "policy.architecture",
    remedy=NO_ROUTERS,
)
def _routers_are_there(
    freeze: bool, exact: bool, model: str, architecture: Mapping[str, Any]
) -> str | None:
    if not (freeze or exact):
        return None
    words = words_of(model, architecture)
    return None if words is None else missing_routers(freeze, exact, words, model)


@rule(
    "policy.sequence_packing",
    "policy.model",
    "policy.architecture",
    remedy="Set policy.sequence_packing=false",
)
def _packed_rows_stay_apart(
    packed: bool, model: str, architecture: Mapping[str, Any]
) -> str | None:
    words = words_of(model, architecture) if packed else None
    if words is None or not is_recurrent(words):
        return None
    return (
        f"policy.sequence_packing=true, and policy.model={model} has layers that would carry their "
        "state from one packed trajectory to the next"
    )
