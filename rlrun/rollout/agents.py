# SPDX-License-Identifier: Apache-2.0
"""Prompts to trajectory groups where agents lead the conversation and ask the policy over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from rlrun.generation.together import run_together
from rlrun.interfaces import Abandoned, AgentEnvironment, EpisodeOrder
from rlrun.metrics.timeline import Lane, Timeline
from rlrun.rendering.renderer import Renderer
from rlrun.rollout.job import Job, RolloutSettings
from rlrun.seeds import seed_of
from rlrun.types import FailureKind, Prompt, Trajectory, TrajectoryGroup

NOT_TRIED_AGAIN = (FailureKind.TIMEOUT, FailureKind.CANCELLED)
"""A sample that took all its time would take its group's time as well."""


class AgentRollout:
    """Runs every sample of a group as an episode of its own, all at once."""

    def __init__(
        self,
        environment: AgentEnvironment,
        renderer: Renderer,
        settings: RolloutSettings,
        stage: str,
        timeline: Timeline | None = None,
    ) -> None:
        """Keeps the parts; owns none of them.

        Args:
            environment: Open.
            renderer: Of the policy.
            settings: Bounds of an episode.
            stage: "training" or "validation", whose draws must not be the same.
            timeline: Where it is noted when episodes are running.
        """
        self.environment, self.renderer = environment, renderer
        self.settings, self.stage = settings, stage
        self.timeline = timeline if timeline is not None else Timeline()
        self.purpose = "rollouts" if stage == "training" else stage

    @property
    def lockstep(self) -> bool:
        """Each group goes its own way; the HTTP server puts together what waits."""
        return False

    def passes_over(self, prompt: Prompt) -> str | None:
        """Why a prompt is not rolled out at present: its agent is paused."""
        return self.environment.paused(prompt)

    async def run(self, jobs: Sequence[Job]) -> list[TrajectoryGroup]:
        """One group per job, samples in order.

        Raises:
            EnvironmentDown: No agent is left that could run any.
            Abandoned: The call was cancelled; says how many tokens had been sampled.
        """
        done: dict[tuple[int, int], Trajectory] = {}

        async def sample(index: int, number: int) -> None:
            try:
                done[index, number] = await self._sample(jobs[index], number)
            except asyncio.CancelledError as error:
                raise _abandoned(error, 0) from None

        places = [(i, n) for i, job in enumerate(jobs) for n in range(job.num_samples)]
        try:
            await run_together([sample(*place) for place in places])
        except asyncio.CancelledError as error:
            raise _abandoned(error, sum(_tokens(t) for t in done.values())) from None
        return [
            TrajectoryGroup(job.prompt, tuple(done[i, n] for n in range(job.num_samples)))
            for i, job in enumerate(jobs)
        ]

    async def _sample(self, job: Job, number: int) -> Trajectory:
        """One sample, tried again where it failed and that may help."""
        lost, attempt = 0, 0
        while True:
            try:
                with self.timeline.busy(Lane.ENVIRONMENT, self.purpose):
                    order = self._order(job, number, attempt)
                    trajectory = await self.environment.run_episode(order)
            except asyncio.CancelledError as error:
                raise _abandoned(error, lost) from None
            attempt += 1
            failure = trajectory.failure
            if (
                failure is None
                or failure.kind in NOT_TRIED_AGAIN
                or attempt >= self.environment.max_sample_attempts
            ):
                said = trajectory.token_ids[trajectory.input_length :]
                response = self.renderer.decode(said)
                lost += trajectory.lost_tokens
                return replace(trajectory, response=response, lost_tokens=lost)
            lost += _tokens(trajectory)

    def _order(self, job: Job, number: int, attempt: int) -> EpisodeOrder:
        settings, prompt = self.settings, job.prompt
        return EpisodeOrder(
            prompt=prompt,
            sample_index=number,
            sampling=settings.sampling,
            max_new_tokens=settings.max_new_tokens,
            max_total_tokens=settings.max_total_tokens,
            seed=episode_seed(settings.seed, self.stage, job, number, attempt),
            timeout_s=settings.env_timeout_s,
        )


def episode_seed(run_seed: int, stage: str, job: Job, number: int, attempt: int) -> int:
    """A seed that no other episode of the run shares."""
    prompt = job.prompt
    return seed_of(run_seed, stage, prompt.group_id, prompt.position, number, job.attempt, attempt)


def _tokens(trajectory: Trajectory) -> int:
    return trajectory.num_sampled + trajectory.lost_tokens


def _abandoned(error: asyncio.CancelledError, more: int) -> Abandoned:
    return Abandoned(more + (error.tokens if isinstance(error, Abandoned) else 0))
