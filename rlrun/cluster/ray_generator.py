# SPDX-License-Identifier: Apache-2.0
"""Generation over Ray actors: calls go to the least busy engine, dead engines are replaced."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from rlrun.cluster.placement import Seat
from rlrun.cluster.ray_engine import Dropped, EngineActor
from rlrun.cluster.ray_runtime import LOGS, Runtime, end_actor, has_died, original
from rlrun.config.schema import RunConfig
from rlrun.errors import EnvironmentDown, GenerationError, RlrunError
from rlrun.interfaces import Abandoned, Generator
from rlrun.types import Completion, GenerationRequest

log = logging.getLogger(__name__)

MAX_CALLS = 100_000
"""Calls that an engine's event loop takes at once; the scheduler bounds them, not Ray."""

CLOSE_TIMEOUT_S = 10.0


class Engine:
    """One engine: the Ray actor of the moment, and whoever takes its place.

    Attributes:
        name: For messages.
        actor: Ready for calls; None while there is none.
        version: Of the weights that it has; None before the first.
        load: Requests that it has not answered.
        starting: The start in progress, or the last one.
    """

    def __init__(self, name: str, index: int, seat: Seat) -> None:
        self.name, self.index, self.seat = name, index, seat
        self.actor: Any = None
        self.version: int | None = None
        self.load = 0
        self.starting: asyncio.Task[None] | None = None


class RayGenerator(Generator):
    """All engines as one generator."""

    def __init__(
        self, runtime: Runtime, config: RunConfig, folder: Path, put_weights: Callable[[], Any]
    ) -> None:
        """Starts nothing yet: ``open`` does.

        Args:
            runtime: Where engines go.
            config: The run.
            folder: The run directory.
            put_weights: Puts the learner's weights into the object store; blocks.
        """
        seats = runtime.plan.engines
        self.engines = [
            Engine(f"engine {index} of {len(seats)}", index, seat)
            for index, seat in enumerate(seats)
        ]
        self.lockstep = False
        self._runtime, self._config, self._folder = runtime, config, folder.absolute()
        self._put_weights = put_weights
        self._weights: Any = None
        self._version = 0
        self._numbers = itertools.count()
        self._closed = False

    async def open(self) -> None:
        """Starts all engines, at once.

        Raises:
            RlrunError: One does not start.
        """
        await asyncio.gather(*(self._ready(engine) for engine in self.engines))

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See ``Generator.generate``.

        A call goes to one engine, which shares what its prompts have in common; in lockstep, when
        it holds all of a step, every engine gets its part.
        """
        if not requests:
            return []
        engines = await self._up()
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
        engine = min(await self._up(), key=lambda engine: engine.load)
        scores: list[float] = await self._wait(engine, engine.actor, "score", tuple(token_ids))
        return scores

    async def engine_scores(self, token_ids: Sequence[int]) -> Mapping[str, list[float]]:
        """See ``Generator.engine_scores``."""
        scores = await asyncio.gather(
            *(self._insist(engine, "score", tuple(token_ids)) for engine in self.engines)
        )
        return {engine.name: one for engine, one in zip(self.engines, scores, strict=True)}

    async def release_memory(self) -> None:
        """See ``Generator.release_memory``: where rank and engine share a GPU."""
        if self._config.grpo.concurrent:
            return
        calls = [
            self._wait(engine, engine.actor, "release_memory")
            for engine in self.engines
            if engine.actor is not None
        ]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            # A dead engine holds no memory; another one is already being started.
            if isinstance(answer, BaseException) and not isinstance(answer, GenerationError):
                raise answer

    async def refit(self, version: int) -> None:
        """See ``Generator.refit``: waits until every engine has the weights."""
        # All ranks gather them, which nothing in this process waits for meanwhile.
        self._weights = await asyncio.to_thread(self._put_weights)
        self._version = version
        await asyncio.gather(*(self._give(engine) for engine in self.engines))

    async def close(self) -> None:
        """Ends the engines."""
        self._closed = True
        for engine in self.engines:
            if engine.starting is not None:
                engine.starting.cancel()
                await asyncio.gather(engine.starting, return_exceptions=True)
            if engine.actor is None:
                continue
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.wrap_future(engine.actor.close.remote().future())
            except (RayError, TimeoutError) as error:
                log.info("%s does not close by itself", engine.name, exc_info=error)
            end_actor(engine.actor)
            engine.actor = None

    # --- calls ------------------------------------------------------------------------------------

    async def _ask(self, engine: Engine, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Completions of one engine.

        Raises:
            Abandoned: The call was cancelled, here and in the engine.
        """
        actor, number = engine.actor, next(self._numbers)
        engine.load += len(requests)
        answer = asyncio.ensure_future(
            self._wait(engine, actor, "generate", number, tuple(requests))
        )
        try:
            return _answered(await asyncio.shield(answer))
        except asyncio.CancelledError:
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

    async def _wait(self, engine: Engine, actor: Any, method: str, *arguments: Any) -> Any:
        """The answer to a call.

        Raises:
            GenerationError: The engine failed; if it is dead, another one is being started.
        """
        try:
            return await asyncio.wrap_future(getattr(actor, method).remote(*arguments).future())
        except RayTaskError as error:
            cause = original(error)
            if isinstance(cause, RlrunError):
                raise cause from None
            what = f"{type(cause).__name__}: {cause}"
            raise GenerationError(engine.name, what, "log.txt of the run says where") from None
        except RayError as error:
            log.info("%s", error)
            if not has_died(error):
                raise GenerationError(engine.name, str(error).splitlines()[0], LOGS) from None
            if engine.actor is actor:
                engine.actor = engine.version = None
                self._begin(engine)
            remedy = f"If nobody killed it, memory is the likely cause. {LOGS}"
            raise GenerationError(engine.name, "its process died", remedy) from None

    # --- engines that come and go -----------------------------------------------------------------

    async def _up(self) -> list[Engine]:
        """The engines that can take work; at least one.

        Raises:
            GenerationError: None can be started.
        """
        for engine in self.engines:
            if engine.actor is None:
                self._begin(engine)
        while not (up := [engine for engine in self.engines if engine.actor is not None]):
            starts = [engine.starting for engine in self.engines if engine.starting is not None]
            running = [start for start in starts if not start.done()]
            if not running:
                starts[0].result()
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        return up

    def _begin(self, engine: Engine) -> asyncio.Task[None]:
        """Starts an engine, unless that is being done."""
        if engine.starting is None or engine.starting.done():
            if self._weights is not None:
                log.warning("%s is started again, with version %d", engine.name, self._version)
            engine.starting = asyncio.create_task(self._start(engine))
            engine.starting.add_done_callback(_log_failure)
        return engine.starting

    async def _ready(self, engine: Engine) -> None:
        if engine.actor is None:
            await asyncio.shield(self._begin(engine))

    async def _start(self, engine: Engine) -> None:
        """Takes calls only with the newest weights, if there are any."""
        if self._closed:
            raise GenerationError(engine.name, "the generator is closed")
        arguments = (self._config, engine.index, self._folder, os.getcwd())
        actor = self._runtime.start_actor(
            EngineActor, engine.seat, *arguments, max_concurrency=MAX_CALLS
        )
        try:
            place = await asyncio.to_thread(self._runtime.find, engine.name, actor)
            log.info("%s: %s", engine.name, place)
            self.lockstep = await self._wait(engine, actor, "start")
            while self._weights is not None and engine.version != self._version:
                version = self._version
                await self._wait(engine, actor, "refit", version, self._weights)
                engine.version = version
        except BaseException as error:
            end_actor(actor)
            engine.version = None
            if isinstance(error, EnvironmentDown) and self._weights is not None:
                # In the middle of a run this is one more failure of generation, to be counted.
                raise GenerationError(engine.name, error.what, error.remedy) from None
            raise
        engine.actor = actor

    async def _give(self, engine: Engine) -> None:
        """Sees to it that an engine has the newest weights; one that starts takes them itself."""
        await self._ready(engine)
        if engine.version != self._version:
            await self._insist(engine, "refit", self._version, self._weights)
            engine.version = self._version

    async def _insist(self, engine: Engine, method: str, *arguments: Any) -> Any:
        """The answer of an engine, or of the one that takes its place if it is dead."""
        await self._ready(engine)
        try:
            return await self._wait(engine, engine.actor, method, *arguments)
        except GenerationError as error:
            if engine.actor is not None:
                raise
            log.warning("%s", error)
        await self._ready(engine)
        return await self._wait(engine, engine.actor, method, *arguments)


def _log_failure(start: asyncio.Task[None]) -> None:
    if not start.cancelled() and start.exception() is not None:
        log.warning("%s", start.exception())


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
    return await asyncio.gather(*tasks, return_exceptions=True)
