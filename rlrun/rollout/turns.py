# SPDX-License-Identifier: Apache-2.0
"""Prompts to trajectory groups: turns, tools, deadlines. Sampled token ids are kept as they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import groupby

from rlrun.errors import DataError, GenerationError
from rlrun.generation.together import run_together
from rlrun.interfaces import Abandoned, Environment, Generator, GroupEnvironment
from rlrun.metrics.timeline import Lane, Timeline
from rlrun.rendering.renderer import Renderer
from rlrun.rollout.job import Job, RolloutSettings
from rlrun.rollout.trajectory import OpenTrajectory
from rlrun.run_dir.json_line import finite
from rlrun.seeds import seed_of
from rlrun.types import (
    LARGEST_REWARD,
    EnvStep,
    Failure,
    FailureKind,
    GenerationRequest,
    Prompt,
    StopReason,
    TrajectoryGroup,
)


class Rollout:
    """Runs prompts against a generator and an environment."""

    def __init__(
        self,
        generator: Generator,
        environment: Environment,
        renderer: Renderer,
        settings: RolloutSettings,
        *,
        timeline: Timeline | None = None,
        purpose: str = "rollouts",
    ) -> None:
        """Keeps the parts; owns none of them.

        Args:
            generator: Samples.
            environment: Answers and scores.
            renderer: Text to tokens and back.
            settings: What bounds a rollout.
            timeline: Where it is noted when generator and environment are busy.
            purpose: What for, in the timeline.
        """
        self.generator, self.environment = generator, environment
        self._of_groups = environment if isinstance(environment, GroupEnvironment) else None
        self.renderer, self.settings = renderer, settings
        self.timeline = timeline if timeline is not None else Timeline()
        self.purpose = purpose

    @property
    def lockstep(self) -> bool:
        """Whether the jobs of a step should come in one call."""
        return self.generator.lockstep

    def passes_over(self, prompt: Prompt) -> str | None:
        """Why a prompt is not rolled out at present; never the case here."""
        return None

    async def run(self, jobs: Sequence[Job]) -> list[TrajectoryGroup]:
        """One group per job, in order.

        With a lockstep generator all trajectories take each turn together, as one ordered list of
        requests: that is what makes a static batch reproducible. With an engine that batches by
        itself each trajectory goes its own way, or each group where one is scored as a whole.

        Raises:
            GenerationError: From the generator; the groups are lost, with the tokens that it tells.
            Abandoned: The call was cancelled; says how many tokens had been sampled.
        """
        groups = [
            [OpenTrajectory.begin(job, sample) for sample in range(job.num_samples)] for job in jobs
        ]
        trajectories = [trajectory for group in groups for trajectory in group]
        try:
            if self.generator.lockstep:
                await self._take_turns(trajectories)
            else:
                await run_together([self._take_turns(ones) for ones in self._apart(trajectories)])
        except asyncio.CancelledError as error:
            unfinished = error.tokens if isinstance(error, Abandoned) else 0
            raise Abandoned(unfinished + sum(t.num_sampled for t in trajectories)) from None
        except GenerationError as error:
            error.tokens += sum(t.num_sampled for t in trajectories)
            raise
        return [self._finished(job, group) for job, group in zip(jobs, groups, strict=True)]

    def _finished(self, job: Job, group: Sequence[OpenTrajectory]) -> TrajectoryGroup:
        return TrajectoryGroup(
            job.prompt,
            tuple(trajectory.finished(self.renderer) for trajectory in group),
            max((trajectory.env_seconds for trajectory in group), default=0.0),
        )

    def _apart(self, trajectories: Sequence[OpenTrajectory]) -> list[list[OpenTrajectory]]:
        """Trajectories that the environment is asked about together."""
        return [[t] for t in trajectories] if self._of_groups is None else _by_job(trajectories)

    async def _take_turns(self, trajectories: Sequence[OpenTrajectory]) -> None:
        while running := [t for t in trajectories if t.end is None]:
            await self._turn(running)

    async def _turn(self, running: Sequence[OpenTrajectory]) -> None:
        requests = [self._request(trajectory) for trajectory in running]
        with self.timeline.busy(Lane.GENERATOR, self.purpose):
            completions = await self.generator.generate(requests)
        for trajectory, completion in zip(running, completions, strict=True):
            trajectory.add_turn(completion, self.renderer.decode(completion.token_ids))
        asked = self._apart(running)
        if len(asked) == 1:
            # The usual case beside an engine, which a task of its own would cost more than it does.
            steps = await self._env_steps(asked[0])
        else:
            told = await asyncio.gather(*(self._env_steps(ones) for ones in asked))
            steps = [step for steps in told for step in steps]
        for trajectory, step in zip(running, steps, strict=True):
            self._apply(trajectory, step)

    def _request(self, trajectory: OpenTrajectory) -> GenerationRequest:
        settings, job = self.settings, trajectory.job
        room = settings.max_total_tokens - len(trajectory.token_ids)
        return GenerationRequest(
            token_ids=tuple(trajectory.token_ids),
            max_new_tokens=min(settings.max_new_tokens, room),
            seed=request_seed(
                settings.seed, job.prompt, trajectory.sample_index, trajectory.turns, job.attempt
            ),
            sampling=settings.sampling,
        )

    async def _env_steps(self, asked: Sequence[OpenTrajectory]) -> list[EnvStep]:
        """What the environment says to one trajectory, or to all of a group."""
        limit, started = self.settings.env_timeout_s, time.monotonic()
        left = None if limit is None else limit - max(one.env_seconds for one in asked)
        deadline = asyncio.timeout(left)
        try:
            async with deadline:
                with self.timeline.busy(Lane.ENVIRONMENT, self.purpose):
                    return [checked(step) for step in await self._ask(asked)]
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        # Environments are other people's code, and some raise what is no Exception.
        except BaseException as error:  # noqa: BLE001
            if deadline.expired():
                text = f"the environment took more than {limit} s over the trajectory"
                return [EnvStep(failure=Failure(FailureKind.TIMEOUT, text))] * len(asked)
            text = f"{type(error).__name__}: {error}"
            return [EnvStep(failure=Failure(FailureKind.ENV_ERROR, text))] * len(asked)
        finally:
            seconds = time.monotonic() - started
            for one in asked:
                one.env_seconds += seconds

    async def _ask(self, asked: Sequence[OpenTrajectory]) -> Sequence[EnvStep]:
        episodes = [one.episode() for one in asked]
        if self._of_groups is not None:
            return await self._of_groups.step_group(episodes)
        return [await self.environment.step(episode) for episode in episodes]

    def _apply(self, trajectory: OpenTrajectory, step: EnvStep) -> None:
        """Ends the trajectory or appends the environment's messages for another turn."""
        if not step.messages:
            trajectory.close(step)
            return
        # Where there can be no further turn, no reward was earned.
        unearned = EnvStep(reward=0.0, rewards=step.rewards)
        if trajectory.stop_reason is not StopReason.STOP:
            # Cut in the middle of a turn: there is nothing to answer.
            trajectory.close(unearned)
            return
        if trajectory.turns >= self.settings.max_turns:
            trajectory.close(unearned, StopReason.MAX_TURNS)
            return
        # A stop string ends a turn without its end-of-turn token, which is then appended.
        stopped = trajectory.token_ids[-1] not in self.renderer.eos_ids
        try:
            more = self.renderer.turn_ids(trajectory.token_ids, step.messages, stopped=stopped)
        except DataError as error:
            # What the environment said cannot be rendered: its fault, not the policy's.
            trajectory.close(EnvStep(failure=Failure(FailureKind.ENV_ERROR, str(error))))
            return
        if len(trajectory.token_ids) + len(more) >= self.settings.max_total_tokens:
            trajectory.close(unearned, StopReason.LENGTH)
            return
        trajectory.messages += step.messages
        trajectory.extend(more, None)


def _by_job(trajectories: Sequence[OpenTrajectory]) -> list[list[OpenTrajectory]]:
    """Trajectories of one group each; those of a group follow one another."""
    return [list(group) for _, group in groupby(trajectories, key=lambda one: id(one.job))]


def checked(step: EnvStep) -> EnvStep:
    """The step with plain numbers within LARGEST_REWARD, or a failure that says what is none."""
    numbers = dict(step.rewards)
    if step.reward is not None:
        numbers["the reward"] = step.reward
    for name, value in numbers.items():
        number = finite(value)
        if number is None or abs(number) > LARGEST_REWARD:
            limit = "no finite number" if number is None else f"beyond {LARGEST_REWARD:.0e}"
            message = f"{name} is {value!r:.100}, which is {limit}"
            return EnvStep(failure=Failure(FailureKind.REWARD_ERROR, message))
        if not name.strip() or "\n" in name:
            message = f"a part of the reward has the name {name!r}"
            return EnvStep(failure=Failure(FailureKind.REWARD_ERROR, message))
    reward = None if step.reward is None else float(step.reward)
    rewards = {name: float(value) for name, value in step.rewards.items()}
    # Written out, as replace takes several times as long and every turn comes here.
    return EnvStep(
        messages=step.messages,
        reward=reward,
        rewards=rewards,
        extracted=step.extracted,
        verifier_timeout=step.verifier_timeout,
        failure=step.failure,
    )


def request_seed(run_seed: int, prompt: Prompt, sample: int, turn: int, attempt: int) -> int:
    """A seed that no other request of training shares, nor of a validation.

    A validation has that of training where the same row is at the same place of the first epoch.
    """
    return seed_of(run_seed, prompt.epoch, prompt.position, prompt.prompt_id, sample, turn, attempt)
