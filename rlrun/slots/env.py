# SPDX-License-Identifier: Apache-2.0
"""The slot env: what answers and scores the policy, turn by turn, by the group or as an agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rlrun.serve.sampled import SampledLog
from rlrun.slots.registry import Checked
from rlrun.types import EnvStep, Message, Prompt, Row, Sampling, StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class Episode:
    """A conversation as the environment sees it after a turn of the policy.

    Attributes:
        prompt: Where it started; ``prompt.row.answer`` and ``.payload`` are the ground truth. The
            same object at every turn and another one for another attempt, so that its id and
            sample_index tell an episode from all others that run; its names do not, as a
            validation may have the same row.
        sample_index: Which sample of the group.
        messages: All messages since (and without) the prompt's, the policy's last one included.
        response: Text of the policy's last turn, special tokens removed but for the tags of
            reasoning and of calls.
        turn: Completed turns, from 1.
        stop_reason: Why the last completion ended.
    """

    prompt: Prompt
    sample_index: int
    messages: tuple[Message, ...]
    response: str
    turn: int
    stop_reason: StopReason


@dataclass(kw_only=True, slots=True)
class Env(Checked, ABC):
    """What scores and answers the policy."""

    max_reward: ClassVar[float | None] = None
    """The most that a sample can be given; None where others' code gives it."""

    @abstractmethod
    def check_row(self, row: Row) -> str | None:
        """Why this environment cannot use a row (such as an unreadable reference answer), or None.

        Called for every row at load, before any model exists; must be quick.
        """

    @property
    def announcement(self) -> str:
        """What is said before ``open``, if that may take a while; "" for nothing."""
        return ""

    @property
    def agents_ask(self) -> bool:
        """Whether agents ask the policy over HTTP, each when it comes to it."""
        return False

    @property
    def peer(self) -> str | None:
        """Another machine from where the policy is asked over HTTP; None if all is on this one."""
        return None

    def scored_needed(self, num_samples: int) -> int:
        """Samples of a group that must have a reward for it to be of use: two, or the only one."""
        return min(2, num_samples)

    @abstractmethod
    def start(self) -> Environment:
        """Starts what is needed (processes, connections)."""


@dataclass(frozen=True, slots=True)
class PolicyAddress:
    """Where agents find the policy of a run.

    Attributes:
        base_urls: One per engine, each ending in /v1. A conversation that stays with one of them
            finds its prefix in that engine's cache.
        api_key: What the servers want to be told.
        model: The name to ask for.
        parses_reasoning: Whether the servers set reasoning apart from the answer.
        sampled: What the servers sampled for requests with a seed.
        folder: Where logs go; None for a temporary folder.
        ray_address: Of the Ray cluster that the run is on; None without one.
    """

    base_urls: tuple[str, ...]
    api_key: str
    model: str
    parses_reasoning: bool
    sampled: SampledLog
    folder: Path | None
    ray_address: str | None = None


class Environment(ABC):
    """A live environment; safe to call for many episodes at once from one event loop."""

    async def open(self, policy: PolicyAddress | None) -> None:
        """Called once before the first episode.

        Args:
            policy: Where the policy answers over HTTP; None where it does not.

        Raises:
            EnvironmentDown: What is needed cannot be started or reached.
        """
        return

    def metrics(self) -> dict[str, float]:
        """Declared metrics of what happened since the run began."""
        return {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint is to keep of it; JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what ``state`` gave, in a run that is resumed; called after ``open``."""
        return

    @abstractmethod
    async def step(self, episode: Episode) -> EnvStep:
        """Scores the episode or answers with the next messages. Faults are returned, not raised."""

    @abstractmethod
    async def close(self) -> None:
        """Ends all processes and connections. May be called twice."""


class GroupEnvironment(Environment):
    """An environment that scores the samples of a prompt together, each in sight of the others."""

    @abstractmethod
    async def step_group(self, episodes: Sequence[Episode]) -> list[EnvStep]:
        """As ``step``, for all samples of a group that took this turn, in their order."""

    async def step(self, episode: Episode) -> EnvStep:
        """Of a group of one."""
        (step,) = await self.step_group([episode])
        return step


@dataclass(frozen=True, slots=True)
class EpisodeOrder:
    """A whole episode to be run by an agent.

    Attributes:
        prompt: Its row says which agent, and what it is told.
        sample_index: Which sample of the group.
        sampling: Temperature and filters of the run.
        max_new_tokens: Per turn.
        max_total_tokens: Prompt and all turns.
        seed: Of all draws of the episode; no other one of the run has it.
        timeout_s: For the whole episode; None is no limit.
    """

    prompt: Prompt
    sample_index: int
    sampling: Sampling
    max_new_tokens: int
    max_total_tokens: int
    seed: int
    timeout_s: float | None


class AgentEnvironment(Environment):
    """An environment whose agents run whole episodes and ask the policy by themselves, over HTTP.

    Attributes:
        max_sample_attempts: How often a sample that fails is tried, at least once.
    """

    max_sample_attempts: int

    @abstractmethod
    async def run_episode(self, order: EpisodeOrder) -> Trajectory:
        """The episode. Faults are returned in the trajectory, not raised.

        Raises:
            EnvironmentDown: No agent is left that could run any.
            Abandoned: The call was cancelled.
        """

    @abstractmethod
    def paused(self, prompt: Prompt) -> str | None:
        """Why the agent of a prompt takes no episodes at present; None if it does."""
