# SPDX-License-Identifier: Apache-2.0
"""Tokenizer and data: all that can be wrong is found before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.model_words import NO_ROUTERS, missing_routers
from rlrun.config.schema import Policy, RunConfig
from rlrun.data.load import load_rows
from rlrun.data.prepare import Prepared, prepare
from rlrun.derived import longest_prompt
from rlrun.errors import ConfigError, Problem
from rlrun.models.resolve import read_model_config
from rlrun.prompts import PromptStream
from rlrun.rendering.renderer import Renderer
from rlrun.serve.choose import check_serving
from rlrun.sinks.installed import check_sinks_installed


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is read and checked before any model is loaded.

    Attributes:
        renderer: Tokenizer and chat template of the policy.
        stream: The training prompts.
        validation: The rows of validation; None if the run has none.
    """

    renderer: Renderer
    stream: PromptStream
    validation: Prepared | None


def read_inputs(config: RunConfig, notice: Callable[[str], None]) -> Inputs:
    """Reads what a run is fed with; ``notice`` is told what the user should know.

    Raises:
        DataError: A row, file or tokenizer cannot be used.
        ConfigError: The model's context is too short, or a package is missing, or
            the HTTP server that is asked for cannot be started.
    """
    for check in check_installed(config):
        check()
    return read_prompts(config, notice)


def check_installed(config: RunConfig) -> tuple[Callable[[], None], ...]:
    """What makes sure, when called, that a part of the run can be started.

    Each raises ConfigError where it cannot, NotInstalled where it lacks a package.
    """
    return (
        lambda: check_sinks_installed(config.logging),
        config.cluster.check_installed,
        lambda: check_serving(config.generation),
        config.generation.check_installed,
    )


def read_prompts(config: RunConfig, notice: Callable[[str], None]) -> Inputs:
    """As ``read_inputs``, whatever is installed.

    Raises:
        DataError: A row, file or tokenizer cannot be used; NotHere: it is to come from elsewhere.
        ConfigError: The model's context is too short.
    """
    renderer = Renderer.load(config.policy)
    check_model(config.policy)
    if config.grpo.max_rollout_turns > 1:
        renderer.check_turns()
    longest = longest_prompt(config)
    prepared = read_rows(config, renderer, longest, training=True)
    stream = PromptStream(
        prepared.rows,
        renderer.prompt_ids,
        checksum=prepared.checksum,
        seed=config.grpo.seed,
        epochs=config.grpo.max_num_epochs,
        shuffle=config.data.train.shuffle,
    )
    notices = [*renderer.notices(), *prepared.notices]
    notices += stream.notices(config.grpo.num_prompts_per_step)
    validation = None
    if config.data.validation.source is not None:
        validation = read_rows(config, renderer, longest, training=False)
        notices += validation.notices
    for text in notices:
        notice(text)
    return Inputs(renderer, stream, validation)


def read_rows(config: RunConfig, renderer: Renderer, longest: int, *, training: bool) -> Prepared:
    """The rows of training or validation that fit."""
    source = config.data.train if training else config.data.validation
    rows = load_rows(source, config.env, on_bad_row=config.data.on_bad_row, base_dir=Path.cwd())
    return prepare(rows, renderer.prompt_ids, longest)


def check_model(policy: Policy) -> None:
    """Makes sure that the model can hold the longest trajectory, and has what settings are for.

    Raises:
        ConfigError: Its context is shorter, it has no routers, or its weights are quantized.
    """
    config = read_model_config(policy.model)
    if config.to_dict().get("quantization_config") is not None:
        what = f"the weights of {policy.model} are quantized, and such are not trained"
        remedy = "Take the model that was quantized"
        raise ConfigError([Problem("policy.model", what, remedy)])
    text = config.get_text_config(decoder=True).to_dict()
    # State-space models have no limit, and no such entry.
    context = text.get("max_position_embeddings")
    if context is not None and policy.max_total_sequence_length > context:
        what = (
            f"policy.max_total_sequence_length={policy.max_total_sequence_length} is above the "
            f"context of {policy.model}, {context} tokens"
        )
        remedy = f"Set policy.max_total_sequence_length={context} or less"
        raise ConfigError([Problem("policy.max_total_sequence_length", what, remedy)])
    # Of a model that had to be fetched first; of others the configuration was checked for it.
    freeze, exact = policy.freeze_moe_router, policy.moe_router_fp32
    missing = missing_routers(freeze, exact, text, policy.model)
    if missing is not None:
        raise ConfigError([Problem("policy.model", missing, NO_ROUTERS)])
