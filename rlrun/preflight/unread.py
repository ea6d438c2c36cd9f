# SPDX-License-Identifier: Apache-2.0
"""Keys that a recipe or flag sets and that nothing reads in this run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rlrun.config import Loaded
from rlrun.config.origin import OriginKind

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Idle:
    """Keys without effect under a condition.

    Attributes:
        keys: Each a key, or the beginning of keys if it ends in a dot.
        when: Takes the run's values; None where the keys have an effect, otherwise what makes them
            idle.
    """

    keys: tuple[str, ...]
    when: Callable[[Values], str | None]


def unread_keys(loaded: Loaded) -> Iterator[tuple[str, str, str]]:
    """Where, what is set in vain, and what to do, for each key that is.

    Defaults and choices of groups may hold what a run does not need, and a scale takes much of a
    recipe back; what a recipe or flag sets is meant to do something.
    """
    values = dict(loaded.values)
    scaled = any(origin.kind is OriginKind.SCALE for origin in loaded.origins.values())
    kinds = {OriginKind.FLAG} if scaled else {OriginKind.FLAG, OriginKind.RECIPE}
    for idle in IDLE:
        why = idle.when(values)
        if why is None:
            continue
        for key, origin in loaded.origins.items():
            if origin.kind in kinds and any(_is(key, name) for name in idle.keys):
                if values[key] not in (None, False):
                    what = f"{key}={values[key]} has no effect: {why}"
                    yield origin.where, what, "Leave it out, or change what makes it idle"


def _is(key: str, name: str) -> bool:
    return key.startswith(name) if name.endswith(".") else key == name


def _off(key: str) -> Callable[[Values], str | None]:
    """Idle where a switch is off."""
    return lambda values: f"{key}=false" if values.get(key) is False else None


def _unless(key: str, wanted: object) -> Callable[[Values], str | None]:
    """Idle where a key has another value."""

    def when(values: Values) -> str | None:
        return None if key not in values or values[key] == wanted else f"{key}={values[key]}"

    return when


def _no_validation(values: Values) -> str | None:
    if values["grpo.val_period"] or values["grpo.val_at_start"] or values["grpo.val_at_end"]:
        return None
    return "the run never validates"


def _no_kl(values: Values) -> str | None:
    penalty = values.get("loss.reference_policy_kl_penalty")
    return "loss.reference_policy_kl_penalty=0" if penalty == 0 else None


def _no_warmup(values: Values) -> str | None:
    return (
        "policy.scheduler.warmup_steps=0" if not values["policy.scheduler.warmup_steps"] else None
    )


def _agents_ask(values: Values) -> str | None:
    """Turns and tools of agents are counted by the agents."""
    return "agents of env=gym count their own turns" if "env.default_agent" in values else None


IDLE: tuple[Idle, ...] = (
    Idle(
        (
            "grpo.val_batch_size",
            "grpo.max_val_samples",
            "grpo.val_num_generations_per_prompt",
            "grpo.val_start_at",
            "generation.val_temperature",
            "generation.val_top_p",
            "generation.val_top_k",
        ),
        _no_validation,
    ),
    Idle(
        (
            "grpo.reward_scaling.source_min",
            "grpo.reward_scaling.source_max",
            "grpo.reward_scaling.target_min",
            "grpo.reward_scaling.target_max",
        ),
        _off("grpo.reward_scaling.enabled"),
    ),
    Idle(
        (
            "grpo.overlong_shaping.buffer_tokens",
            "grpo.overlong_shaping.penalty",
            "grpo.overlong_shaping.max_response_tokens",
        ),
        _off("grpo.overlong_shaping.enabled"),
    ),
    Idle(("grpo.dynamic_sampling_max_gen_batches",), _off("grpo.use_dynamic_sampling")),
    Idle(("grpo.max_expiries",), _unless("grpo.on_age_limit", "expire")),
    Idle(("grpo.max_rollout_turns",), _agents_ask),
    Idle(
        (
            "loss.reference_policy_kl_type",
            "loss.kl_input_clamp",
            "loss.kl_output_clamp",
            "loss.use_on_policy_kl_approximation",
        ),
        _no_kl,
    ),
    Idle(
        (
            "policy.lora.rank",
            "policy.lora.alpha",
            "policy.lora.target_modules",
            "policy.lora.seed",
        ),
        _off("policy.lora.enabled"),
    ),
    Idle(("policy.scheduler.warmup_start_factor",), _no_warmup),
    Idle(
        ("policy.scheduler.decay_steps", "policy.scheduler.final_factor"),
        lambda values: (
            "policy.scheduler.decay=constant"
            if str(values["policy.scheduler.decay"]) == "constant"
            else None
        ),
    ),
    Idle(("generation.http.",), _off("generation.expose_http_server")),
    Idle(
        (
            "checkpointing.save_period",
            "checkpointing.keep_top_k",
            "checkpointing.metric",
            "checkpointing.higher_is_better",
        ),
        _off("checkpointing.enabled"),
    ),
    Idle(
        ("checkpointing.higher_is_better",),
        lambda values: (
            "checkpointing.metric=null" if values["checkpointing.metric"] is None else None
        ),
    ),
    Idle(
        ("correction.type", "correction.level", "correction.ratio_min", "correction.ratio_max"),
        _off("correction.enabled"),
    ),
    Idle(
        ("cluster.gpu_memory_gib",),
        lambda values: (
            "cluster.gpus_per_node=0" if values.get("cluster.gpus_per_node") == 0 else None
        ),
    ),
)
