# SPDX-License-Identifier: Apache-2.0
"""Keys that a recipe or flag sets and that nothing reads in this run.

Which keys a condition makes idle is a table. tests/test_unread_keys.py notes what runs really read:
a key that none of them does, and that the table does not name, fails there.
"""

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

    Defaults and choices of groups may hold what a run does not need, a scale takes much of a recipe
    back, and a resolved config.yaml names every key; what else sets a key is meant to do something.
    """
    values = dict(loaded.values)
    layers = {origin.kind for key, origin in loaded.origins.items() if values[key]}
    differs = OriginKind.SCALE not in layers and OriginKind.DEFAULT in layers
    kinds = {OriginKind.FLAG, OriginKind.RECIPE} if differs else {OriginKind.FLAG}
    values["batching"] = loaded.variants["batching"]
    for key, why in idle_keys(values):
        origin = loaded.origins[key]
        if origin.kind in kinds and values[key] not in (None, False):
            value = "true" if values[key] is True else values[key]
            what = f"{key}={value} has no effect: {why}"
            yield origin.where, what, "Leave it out, or change what makes it idle"


def said(where: str, what: str) -> str:
    """One finding in words; a flag is its own place."""
    return what if what.startswith(where) else f"{where}: {what}"


def idle_keys(values: Values) -> Iterator[tuple[str, str]]:
    """The keys of a run that have no effect in it, whatever sets them, each with the reason."""
    for idle in IDLE:
        why = idle.when(values)
        if why is not None:
            for key in values:
                if any(_is(key, name) for name in idle.keys):
                    yield key, why


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


def _greedy(values: Values) -> str | None:
    """Several samples of which each is the most likely one; agents may ask different questions."""
    several = values["grpo.val_num_generations_per_prompt"] > 1 and _agents_ask(values) is None
    if several and values["generation.val_temperature"] == 0:
        return "at generation.val_temperature=0 the samples of a prompt are equal"
    return None


def _no_kl(values: Values) -> str | None:
    penalty = values.get("loss.reference_policy_kl_penalty")
    return "loss.reference_policy_kl_penalty=0" if penalty == 0 else None


def _no_warmup(values: Values) -> str | None:
    return (
        "policy.scheduler.warmup_steps=0" if not values["policy.scheduler.warmup_steps"] else None
    )


def _no_thinking(values: Values) -> str | None:
    """Nothing looks for the tags of reasoning."""
    penalties = ("duplicated_reasoning", "empty_final_answer", "malformed_thinking")
    keys = (
        *(f"grpo.reward_penalties.{name}" for name in penalties),
        "grpo.malformed_thinking_advantage",
    )
    return None if any(values[key] for key in keys) else "no penalty looks for reasoning"


def _one_rank(values: Values) -> str | None:
    ranks = values.get("cluster.num_learner_ranks", 1)
    return "the learner has one rank, whose GPU holds it whole" if ranks == 1 else None


def _nothing_stale(values: Values) -> str | None:
    if values["correction.enabled"] is not False:
        return "correction is on where tokens are stale"
    age = values.get("grpo.max_trajectory_age_steps", 0)
    return "no token is stale" if age == 0 else None


def _on_policy(values: Values) -> str | None:
    age = values.get("grpo.max_trajectory_age_steps")
    return "at age 0 nothing is running when weights change" if age == 0 else None


def _never_at_limit(values: Values) -> str | None:
    if values.get("batching") == "in_order":
        return "batching=in_order waits for the groups of a step, whatever their age"
    return _on_policy(values)


def _null(key: str) -> Callable[[Values], str | None]:
    """Idle where a key is null."""
    return lambda values: f"{key}=null" if key in values and values[key] is None else None


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
    Idle(("grpo.val_num_generations_per_prompt",), _greedy),
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
    Idle(("grpo.on_age_limit", "grpo.max_expiries"), _never_at_limit),
    Idle(
        ("grpo.in_flight_weight_updates", "grpo.recompute_kv_cache_after_weight_updates"),
        _on_policy,
    ),
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
    Idle(("correction.allow_stale_without",), _nothing_stale),
    Idle(
        ("grpo.reward_penalties.think_open", "grpo.reward_penalties.think_close"),
        _no_thinking,
    ),
    Idle(
        ("grpo.effort.low_weight", "grpo.effort.low_penalty", "grpo.effort.low_tokens"),
        _null("grpo.effort.low_string"),
    ),
    Idle(("policy.fsdp.cpu_offload",), _one_rank),
    Idle(("logging.keep_trained_steps",), _off("logging.trained")),
    Idle(("logging.wandb.project", "logging.wandb.mode"), _off("logging.wandb.enabled")),
    Idle(
        ("logging.mlflow.tracking_uri", "logging.mlflow.experiment"), _off("logging.mlflow.enabled")
    ),
    Idle(
        ("cluster.gpu_memory_gib",),
        lambda values: (
            "cluster.gpus_per_node=0" if values.get("cluster.gpus_per_node") == 0 else None
        ),
    ),
)
