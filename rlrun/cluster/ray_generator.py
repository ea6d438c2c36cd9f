# SPDX-License-Identifier: Apache-2.0
"""Generation over Ray actors: calls go to the least busy engine, dead engines are replaced."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlrun.cluster.ray_engine import Dropped
from rlrun.cluster.ray_pool import Engine, EnginePool
from rlrun.errors import GenerationError
from rlrun.interfaces import Abandoned, Generator
from rlrun.types import Completion, GenerationRequest


class RayGenerator(Generator):
    """All engines as one generator."""

    def __init__(self, pool: EnginePool, put_weights: Callable[[], Any], concurrent: bool) -> None:
        """Takes over a pool of started engines.

        Args:
            pool: The engines; closed with this.
            put_weights: Puts the learner's weights into the object store; blocks.
            concurrent: Whether learner and engines work at once.
        """
        self.lockstep = pool.lockstep
        self.pool, self._put_weights, self._concurrent = pool, put_weights, concurrent
        self._numbers = itertools.count()

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See ``Generator.generate``.

        A call goes to one engine, which shares what its prompts have in common; in lockstep, when
        it holds all of a step, every engine gets its part.
        """
        if not requests:
            return []
        engines = await self.pool.up()
        if not self.lockstep:
            return await self._ask(min(engines, key=lambda engine: engine.load), requests)
        parts = _parts(requests, len(engines))
        tasks = [
            asyncio.create_task(self._ask_or_abandon(engine, part))
            for engine, part in zip(engines, parts, strict=False)
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            tokens = 0
            for answer in await _cancelled(tasks):
                tokens += answer.tokens if isinstance(answer, Abandoned) else 0
            raise Abandoned(tokens) from None
        if any(task.done() and task.exception() is not None for task in tasks):
            answers = await _cancelled(tasks)
            raise next(answer for answer in answers if isinstance(answer, Exception))
        return [completion for task in tasks for completion in _answered(task.result())]

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Generator.score``: by the least busy engine."""
        engine = min(await self.pool.up(), key=lambda engine: engine.load)
        scores: list[float] = await self.pool.wait(engine, engine.actor, "score", tuple(token_ids))
        return scores

    async def engine_scores(self, token_ids: Sequence[int]) -> Mapping[str, list[float]]:
        """See ``Generator.engine_scores``."""
        answers = await self.pool.each("score", tuple(token_ids))
        return {engine.name: scores for engine, scores in answers}

    async def release_memory(self) -> None:
        """See ``Generator.release_memory``: where rank and engine share a GPU."""
        if self._concurrent:
            return
        await self.pool.each("release_memory")

    async def refit(self, version: int) -> None:
        """See ``Generator.refit``: waits until every engine at work has the weights."""
        # All ranks gather them, which nothing in this process waits for meanwhile.
        await self.pool.give(version, await asyncio.to_thread(self._put_weights))

    async def close(self) -> None:
        """Ends the engines."""
        await self.pool.close()

    async def _ask(self, engine: Engine, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Completions of one engine.

        Raises:
            Abandoned: The call was cancelled, here and in the engine.
        """
        actor, number = engine.actor, next(self._numbers)
        engine.load += len(requests)
        answer = asyncio.ensure_future(
            self.pool.wait(engine, actor, "generate", number, tuple(requests))
        )
        try:
            with self.at_work(engine.name):
                return _answered(await asyncio.shield(answer))
        except asyncio.CancelledError:
            if actor is not None:
                actor.cancel.remote(number)
            try:
                found = await asyncio.shield(answer)
            except GenerationError:
                raise Abandoned(0) from None
            if isinstance(found, Dropped):
                raise Abandoned(found.tokens) from None
            tokens = sum(len(completion.token_ids) for completion in found)
            raise Abandoned(tokens) from None
        finally:
            engine.load -= len(requests)

    async def _ask_or_abandon(
        self, engine: Engine, requests: Sequence[GenerationRequest]
    ) -> list[Completion] | Abandoned:
        """As ``_ask``, for a task of its own: being cancelled is an answer."""
        try:
            return await self._ask(engine, requests)
        except Abandoned as error:
            return error


def _answered(answer: list[Completion] | Dropped | Abandoned) -> list[Completion]:
    assert isinstance(answer, list), "nobody cancelled the call"
    return answer


def _parts(requests: Sequence[GenerationRequest], count: int) -> list[Sequence[GenerationRequest]]:
    """Contiguous parts of about equal size, none of them empty."""
    count = min(count, len(requests))
    bounds = [len(requests) * i // count for i in range(count + 1)]
    return [requests[begin:end] for begin, end in itertools.pairwise(bounds)]


async def _cancelled(
    tasks: Sequence[asyncio.Task[list[Completion] | Abandoned]],
) -> list[list[Completion] | Abandoned | BaseException]:
    """Ends the tasks; what came of each."""
    for task in tasks:
        task.cancel()
    return list(await asyncio.gather(*tasks, return_exceptions=True))
