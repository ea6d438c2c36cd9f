# SPDX-License-Identifier: Apache-2.0
"""Who leads the conversation of a rollout: rlrun itself, or the environment's agents."""

from __future__ import annotations

from rlrun.agent_rollout import AgentRollout
from rlrun.config.schema import RunConfig
from rlrun.derived import rollout_settings
from rlrun.interfaces import AgentEnvironment, Environment, Generator
from rlrun.renderer import Renderer
from rlrun.rollout import Rollout, RolloutRunner


def make_rollout(
    config: RunConfig,
    renderer: Renderer,
    generator: Generator,
    environment: Environment,
    *,
    training: bool,
) -> RolloutRunner:
    """What rolls prompts out, with the sampling of training or of validation."""
    settings = rollout_settings(config, training=training)
    if isinstance(environment, AgentEnvironment):
        stage = "training" if training else "validation"
        return AgentRollout(environment, renderer, settings, stage)
    return Rollout(generator, environment, renderer, settings)
