# SPDX-License-Identifier: Apache-2.0
"""Who leads the conversation of a rollout: rlrun itself, or the environment's agents."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.derived import rollout_settings
from rlrun.interfaces import AgentEnvironment, Environment, Generator
from rlrun.metrics.timeline import Timeline
from rlrun.rendering.renderer import Renderer
from rlrun.rollout import Rollout, RolloutRunner
from rlrun.rollout.agents import AgentRollout


def make_rollout(
    config: RunConfig,
    renderer: Renderer,
    generator: Generator,
    environment: Environment,
    *,
    training: bool,
    timeline: Timeline | None = None,
) -> RolloutRunner:
    """What rolls prompts out, with the sampling of training or of validation."""
    settings = rollout_settings(config, training=training)
    if isinstance(environment, AgentEnvironment):
        stage = "training" if training else "validation"
        return AgentRollout(environment, renderer, settings, stage, timeline)
    purpose = "rollouts" if training else "validation"
    return Rollout(generator, environment, renderer, settings, timeline=timeline, purpose=purpose)
