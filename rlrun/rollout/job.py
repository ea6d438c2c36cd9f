# SPDX-License-Identifier: Apache-2.0
"""What a rollout is asked for, its bounds, and the protocol of what runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlrun.metrics.timeline import Timeline
from rlrun.types import Prompt, Sampling, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """What bounds a rollout.

    Attributes:
        sampling: Temperature, filters, stop strings.
        max_new_tokens: Per turn; clamped to the room left in the context.
        max_total_tokens: Prompt and all turns.
        max_turns: Completions per trajectory.
        env_timeout_s: Time that the environment may take over one trajectory, all turns together;
            None = no limit.
        seed: Of the run; with stream position, sample, turn and attempt it seeds each request.
    """

    sampling: Sampling
    max_new_tokens: int
    max_total_tokens: int
    max_turns: int
    env_timeout_s: float | None
    seed: int


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to roll out.

    Attributes:
        prompt: The prompt.
        num_samples: Trajectories to make.
        attempt: 0 at first; each retry has the next number, which makes it draw other samples.
    """

    prompt: Prompt
    num_samples: int
    attempt: int = 0


class RolloutRunner(Protocol):
    """Turns prompts into trajectory groups, whoever leads the conversation.

    Attributes:
        timeline: Where it is noted who was busy when.
    """

    timeline: Timeline

    @property
    def lockstep(self) -> bool:
        """Whether the jobs of a step should come in one call."""

    def passes_over(self, prompt: Prompt) -> str | None:
        """Why a prompt is not rolled out at present, or None."""

    async def run(self, jobs: Sequence[Job]) -> list[TrajectoryGroup]:
        """One group per job, in order.

        Raises:
            GenerationError: The groups are lost; says how many tokens had been sampled.
            EnvironmentDown: Nothing can be rolled out any more.
            Abandoned: The call was cancelled; says how many tokens had been sampled.
        """
