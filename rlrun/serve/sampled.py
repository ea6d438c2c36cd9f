# SPDX-License-Identifier: Apache-2.0
"""What the HTTP server sampled for an episode that an agent runs, kept until the episode is over.

The agent's answer tells tokens and log-probs; which weights drew them, and what was drawn for an
episode that failed or was called off, is known only where it was sampled. An episode is told from
all others by the seed of its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from rlrun.generation.abandoned import Abandoned, tokens_in
from rlrun.types import Completion

END_S = 10.0
"""Seconds that an engine has to give requests up; what it then still samples is not counted."""


class EpisodeOver(Exception):
    """Something was to be sampled for an episode that has ended meanwhile."""


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One answer of the policy.

    Attributes:
        prompt: All tokens before it.
        completion: What was sampled.
    """

    prompt: tuple[int, ...]
    completion: Completion


@dataclass(frozen=True, slots=True)
class SampledEpisode:
    """What an episode got from the policy.

    Attributes:
        turns: Whole answers, in order.
        unfinished: Tokens of answers that were called off.
    """

    turns: tuple[SampledTurn, ...] = ()
    unfinished: int = 0

    @property
    def tokens(self) -> int:
        """All that were sampled."""
        return self.unfinished + tokens_in([turn.completion for turn in self.turns])


@dataclass(slots=True, eq=False)
class _Episode:
    """An episode that somebody waits for."""

    turns: list[SampledTurn] = field(default_factory=list)
    running: set[asyncio.Task[list[Completion]]] = field(default_factory=set)
    unfinished: int = 0
    over: bool = False

    async def keep(
        self, prompt: tuple[int, ...], work: Coroutine[Any, Any, list[Completion]]
    ) -> list[Completion]:
        """Awaits answers and notes what came of them."""
        try:
            completions = await work
        except Abandoned as error:
            self.unfinished += error.tokens
            raise
        self.turns += [SampledTurn(prompt, completion) for completion in completions]
        return completions


class SampledLog:
    """Answers by seed, of the seeds that somebody waits for."""

    def __init__(self) -> None:
        self._episodes: dict[int, _Episode] = {}

    def expect(self, seed: int) -> None:
        """Keeps from now on what is sampled with this seed."""
        self._episodes[seed] = _Episode()

    async def watch(
        self, seed: int, prompt: tuple[int, ...], work: Coroutine[Any, Any, list[Completion]]
    ) -> list[Completion]:
        """Awaits answers to a prompt and keeps them, if their seed is expected.

        Raises:
            EpisodeOver: ``end`` came before they did.
        """
        episode = self._episodes.get(seed)
        if episode is None:
            return await work
        task = asyncio.create_task(episode.keep(prompt, work))
        episode.running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if episode.over:
                raise EpisodeOver from None
            raise
        finally:
            episode.running.discard(task)

    async def end(self, seed: int) -> SampledEpisode:
        """What was sampled with this seed; calls off what still is, and forgets the seed."""
        episode = self._episodes.pop(seed, None)
        if episode is None:
            return SampledEpisode()
        episode.over = True
        running = set(episode.running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=END_S)
        return SampledEpisode(tuple(episode.turns), episode.unfinished)
