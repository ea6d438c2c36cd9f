# SPDX-License-Identifier: Apache-2.0
"""Prompts to trajectory groups: turns, tools, deadlines. Sampled token ids are kept as they are."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from rlrun.errors import DataError, GenerationError
from rlrun.interfaces import Abandoned, Environment, Episode, Generator, GroupEnvironment
from rlrun.json_line import finite
from rlrun.renderer import Renderer
from rlrun.timeline import Lane, Timeline
from rlrun.together import run_together
from rlrun.types import (
    Completion,
    EnvStep,
    Failure,
    FailureKind,
    GenerationRequest,
    Message,
    Prompt,
    Sampling,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    VersionSpan,
)


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
        attempt: 0 at first; differs when the prompt is tried again, so that the draw does too.
    """

    prompt: Prompt
    num_samples: int
    attempt: int = 0


@dataclass(slots=True)
class _Open:
    """A trajectory in the making."""

    job: Job
    sample_index: int
    token_ids: list[int]
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    env_seconds: float = 0.0
    stop_reason: StopReason = StopReason.LENGTH
    end: EnvStep | None = None

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Appends tokens; those with log-probs were sampled and will be trained."""
        self.token_ids += token_ids
        self.loss_mask += [logprobs is not None] * len(token_ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(token_ids)


def _by_job(trajectories: Sequence[_Open]) -> list[list[_Open]]:
    """Trajectories of one group each; those of a group follow one another."""
    return [list(group) for _, group in groupby(trajectories, key=lambda one: id(one.job))]


def _episode(trajectory: _Open) -> Episode:
    return Episode(
        prompt=trajectory.job.prompt,
        sample_index=trajectory.sample_index,
        messages=tuple(trajectory.messages),
        response=str(trajectory.messages[-1]["content"]),
        turn=trajectory.turns,
        stop_reason=trajectory.stop_reason,
    )


def checked(step: EnvStep) -> EnvStep:
    """The step with plain finite numbers, or a failure that says what is none."""
    numbers = dict(step.rewards)
    if step.reward is not None:
        numbers["the reward"] = step.reward
    for name, value in numbers.items():
        if finite(value) is None:
            message = f"{name} is {value!r:.100}, which is no finite number"
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
    """A 63-bit seed that no other request of the run shares, equal on every machine."""
    parts = (run_seed, prompt.epoch, prompt.position, prompt.prompt_id, sample, turn, attempt)
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class RolloutRunner(Protocol):
    """Makes trajectory groups of prompts, whoever leads the conversation.

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
        trajectories = [
            _Open(
                job,
                sample,
                list(job.prompt.token_ids),
                [False] * len(job.prompt.token_ids),
                [0.0] * len(job.prompt.token_ids),
            )
            for job in jobs
            for sample in range(job.num_samples)
        ]
        try:
            if self.generator.lockstep:
                await self._take_turns(trajectories)
            else:
                await run_together([self._take_turns(ones) for ones in self._apart(trajectories)])
        except asyncio.CancelledError as error:
            unfinished = error.tokens if isinstance(error, Abandoned) else 0
            raise Abandoned(unfinished + sum(sum(t.loss_mask) for t in trajectories)) from None
        except GenerationError as error:
            error.tokens += sum(sum(t.loss_mask) for t in trajectories)
            raise
        groups: dict[int, list[Trajectory]] = {index: [] for index in range(len(jobs))}
        indices = {id(job): index for index, job in enumerate(jobs)}
        for trajectory in trajectories:
            groups[indices[id(trajectory.job)]].append(self._finished(trajectory))
        env_s = [0.0] * len(jobs)
        for trajectory in trajectories:
            index = indices[id(trajectory.job)]
            env_s[index] = max(env_s[index], trajectory.env_seconds)
        return [
            TrajectoryGroup(job.prompt, tuple(groups[index]), env_s[index])
            for index, job in enumerate(jobs)
        ]

    def _apart(self, trajectories: Sequence[_Open]) -> list[list[_Open]]:
        """Trajectories that the environment is asked about together."""
        return [[t] for t in trajectories] if self._of_groups is None else _by_job(trajectories)

    async def _take_turns(self, trajectories: Sequence[_Open]) -> None:
        while running := [t for t in trajectories if t.end is None]:
            await self._turn(running)

    async def _turn(self, running: Sequence[_Open]) -> None:
        requests = [self._request(trajectory) for trajectory in running]
        with self.timeline.busy(Lane.GENERATOR, self.purpose):
            completions = await self.generator.generate(requests)
        for trajectory, completion in zip(running, completions, strict=True):
            self._append_completion(trajectory, completion)
        asked = self._apart(running)
        if len(asked) == 1:
            # The usual case beside an engine, which a task of its own would cost more than it does.
            steps = await self._env_steps(asked[0])
        else:
            told = await asyncio.gather(*(self._env_steps(ones) for ones in asked))
            steps = [step for steps in told for step in steps]
        for trajectory, step in zip(running, steps, strict=True):
            self._apply(trajectory, step)

    def _request(self, trajectory: _Open) -> GenerationRequest:
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

    def _append_completion(self, trajectory: _Open, completion: Completion) -> None:
        start = len(trajectory.token_ids)
        trajectory.extend(completion.token_ids, completion.logprobs)
        trajectory.spans += [
            VersionSpan(span.version, span.start + start, span.end + start)
            for span in completion.weight_versions
        ]
        trajectory.turns += 1
        trajectory.stop_reason = completion.stop_reason
        text = self.renderer.decode(completion.token_ids)
        trajectory.messages.append({"role": "assistant", "content": text})

    async def _env_steps(self, asked: Sequence[_Open]) -> list[EnvStep]:
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

    async def _ask(self, asked: Sequence[_Open]) -> Sequence[EnvStep]:
        episodes = [_episode(one) for one in asked]
        if self._of_groups is not None:
            return await self._of_groups.step_group(episodes)
        return [await self.environment.step(episode) for episode in episodes]

    def _apply(self, trajectory: _Open, step: EnvStep) -> None:
        """Ends the trajectory or appends the environment's messages for another turn."""
        if not step.messages:
            trajectory.end = step
            if step.failure is not None:
                trajectory.stop_reason = StopReason.ERROR
            return
        if trajectory.stop_reason is not StopReason.STOP:
            # Cut in the middle of a turn: there is nothing to answer, and no reward was earned.
            trajectory.end = EnvStep(reward=0.0, rewards=step.rewards)
            return
        if trajectory.turns >= self.settings.max_turns:
            trajectory.end = EnvStep(reward=0.0, rewards=step.rewards)
            trajectory.stop_reason = StopReason.MAX_TURNS
            return
        # A stop string ends a turn without its end-of-turn token, which is then appended.
        stopped = trajectory.token_ids[-1] not in self.renderer.eos_ids
        try:
            more = self.renderer.turn_ids(trajectory.token_ids, (), step.messages, stopped=stopped)
        except DataError as error:
            # What the environment said cannot be rendered: its fault, not the policy's.
            trajectory.end = EnvStep(failure=Failure(FailureKind.ENV_ERROR, str(error)))
            trajectory.stop_reason = StopReason.ERROR
            return
        if len(trajectory.token_ids) + len(more) >= self.settings.max_total_tokens:
            trajectory.end = EnvStep(reward=0.0, rewards=step.rewards)
            trajectory.stop_reason = StopReason.LENGTH
            return
        trajectory.messages += step.messages
        trajectory.extend(more, None)

    def _finished(self, trajectory: _Open) -> Trajectory:
        end = trajectory.end
        assert end is not None, "only ended trajectories are finished"
        input_length = len(trajectory.job.prompt.token_ids)
        if trajectory.turns == 1:
            response = str(trajectory.messages[0]["content"])
        else:
            response = self.renderer.decode(trajectory.token_ids[input_length:])
        return Trajectory(
            sample_index=trajectory.sample_index,
            token_ids=tuple(trajectory.token_ids),
            loss_mask=tuple(trajectory.loss_mask),
            generation_logprobs=tuple(trajectory.logprobs),
            weight_versions=tuple(trajectory.spans),
            input_length=input_length,
            response=response,
            reward=end.reward,
            rewards=end.rewards,
            extracted=end.extracted,
            stop_reason=trajectory.stop_reason,
            failure=end.failure,
            verifier_timeout=end.verifier_timeout,
            turns=trajectory.turns,
        )
