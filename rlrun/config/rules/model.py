# SPDX-License-Identifier: Apache-2.0
"""Rules on what a model has, as far as its config.json says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlrun.config.model_words import (
    CAUSAL_MODELS,
    NO_ROUTERS,
    is_recurrent,
    missing_routers,
    not_causal,
    words_of,
)
from rlrun.config.paths import conf_dir, is_file
from rlrun.config.rules.rule import rule


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
