# SPDX-License-Identifier: Apache-2.0
"""Whatever becomes of an episode, each token that was sampled for it is told once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from rlrun.errors import GenerationError
from rlrun.generation.abandoned import Abandoned, tokens_in, tokens_of
from rlrun.serve.sampled import EpisodeOver, SampledEpisode, SampledLog
from rlrun.types import Completion, StopReason, VersionSpan
from tests.loops import settled

PROMPT = (5, 6)
SEED = 7


def completion(count: int) -> Completion:
    """Of so many tokens."""
    spans = (VersionSpan(0, 0, count),)
    return Completion((1,) * count, (-0.5,) * count, StopReason.STOP, spans)


@dataclass
class Engine:
    """Gives up with a count, or answers once its gate is open."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def sample(self, count: int, choices: int = 1) -> list[Completion]:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            raise Abandoned(count - 1) from None
        return [completion(count)] * choices


def run(work: Callable[[SampledLog, Engine], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            await work(SampledLog(), Engine())

    asyncio.run(bounded())


async def begun(task: asyncio.Task[list[Completion]]) -> asyncio.Task[list[Completion]]:
    """The task, once it waits for the engine."""
    await settled()
    assert not task.done()
    return task


def test_only_awaited_seeds_are_kept() -> None:
    async def work(log: SampledLog, engine: Engine) -> None:
        engine.gate.set()
        await log.watch(1, PROMPT, engine.sample(3))
        log.expect(2)
        await log.watch(2, PROMPT, engine.sample(4, choices=2))
        assert await log.end(1) == SampledEpisode()
        ended = await log.end(2)
        assert [turn.prompt for turn in ended.turns] == [PROMPT] * 2
        assert (ended.unfinished, ended.tokens) == (0, 8)
        assert await log.end(2) == SampledEpisode()

    run(work)


def test_the_end_of_an_episode_calls_off_and_counts_what_is_being_sampled() -> None:
    async def work(log: SampledLog, engine: Engine) -> None:
        log.expect(SEED)
        task = await begun(asyncio.create_task(log.watch(SEED, PROMPT, engine.sample(9))))
        ended = await log.end(SEED)
        assert ended == SampledEpisode((), 8) and ended.tokens == 8
        with pytest.raises(EpisodeOver):
            await task

    run(work)


def test_what_a_client_hung_up_on_is_counted_for_its_episode() -> None:
    async def work(log: SampledLog, engine: Engine) -> None:
        log.expect(SEED)
        task = await begun(asyncio.create_task(log.watch(SEED, PROMPT, engine.sample(9))))
        task.cancel()
        with pytest.raises(Abandoned):
            await task
        engine.gate.set()
        await log.watch(SEED, PROMPT, engine.sample(3))
        assert (await log.end(SEED)).tokens == 8 + 3

    run(work)


def test_an_answer_that_comes_with_the_end_is_counted_once() -> None:
    async def work(log: SampledLog, engine: Engine) -> None:
        log.expect(SEED)
        task = await begun(asyncio.create_task(log.watch(SEED, PROMPT, engine.sample(9))))
        engine.gate.set()
        await asyncio.sleep(0)
        ended = await log.end(SEED)
        assert await task == [completion(9)]
        assert ended.tokens == 9

    run(work)


def test_an_engine_that_fails_is_no_sampled_token() -> None:
    async def fails() -> list[Completion]:
        raise GenerationError("x", "broken")

    async def work(log: SampledLog, engine: Engine) -> None:
        log.expect(SEED)
        with pytest.raises(GenerationError):
            await log.watch(SEED, PROMPT, fails())
        assert await log.end(SEED) == SampledEpisode()

    run(work)


async def lost(tokens: int) -> list[Completion]:
    error = GenerationError("engine", "gone")
    error.tokens = tokens
    raise error


async def wrong() -> list[Completion]:
    raise KeyError("a bug")


def test_the_tokens_of_a_call_are_known_however_it_ends() -> None:
    async def work(log: SampledLog, engine: Engine) -> None:
        cancelled = await begun(asyncio.create_task(engine.sample(9)))
        cancelled.cancel()
        answered = Engine()
        answered.gate.set()
        others = [answered.sample(4, choices=2), lost(3), wrong()]
        tasks = [cancelled, *map(asyncio.ensure_future, others)]
        await asyncio.wait(tasks)
        assert [tokens_of(task, tokens_in) for task in tasks] == [8, 8, 3, 0]

    run(work)
