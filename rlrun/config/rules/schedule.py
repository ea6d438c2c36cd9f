# SPDX-License-Identifier: Apache-2.0
"""Rules on when a run validates, saves and ends."""

from __future__ import annotations

from rlrun.config.rules.rule import rule
from rlrun.config.suggest import nearest
from rlrun.metrics.registry import why_never_logged

STOP_METRICS = ("validation/accuracy", "validation/reward_mean", "validation/pass_k")


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
