# SPDX-License-Identifier: Apache-2.0
"""Generation over Ray actors: calls go to the least busy engine, dead engines are replaced."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rlrun.cluster.ray_engine import Dropped
from rlrun.cluster.ray_pool import Engine, EnginePool
from rlrun.errors import GenerationError
from rlrun.generation.abandoned import Abandoned, tokens_in
from rlrun.generation.engine_view import EngineView
from rlrun.generation.together import run_together
from rlrun.interfaces import Generator
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
        asked = [self._ask(engine, part) for engine, part in zip(engines, parts, strict=False)]
        return [one for part in await run_together(asked, tokens_in) for one in part]

    def engine_views(self) -> tuple[Generator, ...]:
        """See ``Generator.engine_views``; a lockstep engine wants all requests in one call."""
        if len(self.pool.engines) == 1 or self.lockstep:
            return (self,)
        return tuple(
            EngineView(self, partial(self._generate_on, engine)) for engine in self.pool.engines
        )

    async def _generate_on(
        self, engine: Engine, requests: Sequence[GenerationRequest]
    ) -> list[Completion]:
        """As ``generate``, by a certain engine as long as it is there."""
        if engine not in await self.pool.up():
            return await self.generate(requests)
        return await self._ask(engine, requests)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Generator.score``: by the least busy engine."""
        engine = min(await self.pool.up(), key=lambda engine: engine.load)
        scores: list[float] = await self.pool.wait(engine, engine.actor, "score", tuple(token_ids))
        return scores

    async def engine_scores(self, token_ids: Sequence[int]) -> Mapping[str, list[float]]:
        """See ``Generator.engine_scores``."""
        return await self.pool.prove(tuple(token_ids))

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
                found = await asyncio.shield(answer)
            assert isinstance(found, list), "nobody cancelled the call"
            return found
        except asyncio.CancelledError:
            if actor is not None:
                actor.cancel.remote(number)
            try:
                given_up: list[Completion] | Dropped = await asyncio.shield(answer)
            except GenerationError as error:
                raise Abandoned(error.tokens) from None
            if isinstance(given_up, Dropped):
                raise Abandoned(given_up.tokens) from None
            raise Abandoned(tokens_in(given_up)) from None
        finally:
            engine.load -= len(requests)


def _parts(requests: Sequence[GenerationRequest], count: int) -> list[Sequence[GenerationRequest]]:
    """Contiguous parts of about equal size, none of them empty."""
    count = min(count, len(requests))
    bounds = [len(requests) * i // count for i in range(count + 1)]
    return [requests[begin:end] for begin, end in itertools.pairwise(bounds)]
