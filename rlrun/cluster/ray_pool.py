# SPDX-License-Identifier: Apache-2.0
"""Engines that come and go: each is a Ray actor, and whichever takes its place when it dies."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from rlrun.cluster import ray_liveness
from rlrun.cluster.placement import Seat
from rlrun.cluster.ray_engine import EngineActor
from rlrun.cluster.ray_runtime import Runtime, end_actor, has_died, original
from rlrun.config.schema import RunConfig
from rlrun.errors import EnvironmentDown, GenerationError, RlrunError, TrainingError
from rlrun.generation.restart import start_again
from rlrun.refit.probe import Proof

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
        watch: Looks whether the actor of the moment hangs.
        hung: The last one that did, and was killed for it.
    """

    def __init__(self, name: str, index: int, seat: Seat) -> None:
        self.name, self.index, self.seat = name, index, seat
        self.actor: Any = None
        self.version: int | None = None
        self.load = 0
        self.starting: asyncio.Task[None] | None = None
        self.watch: asyncio.Task[None] | None = None
        self.hung: Any = None


class EnginePool:
    """All engines of a run.

    Attributes:
        engines: In order, dead ones included.
        lockstep: As the generators in the engines have it; known once one has started.
    """

    def __init__(self, runtime: Runtime, config: RunConfig, folder: Path) -> None:
        """Starts nothing yet: ``open`` does."""
        seats = runtime.plan.engines
        self.engines = [
            Engine(f"engine {index} of {len(seats)}", index, seat)
            for index, seat in enumerate(seats)
        ]
        self.lockstep = False
        self._runtime, self._config, self._folder = runtime, config, folder.absolute()
        self._proof = Proof(config.policy.precision)
        self._disproved: TrainingError | None = None
        self._weights: Any = None
        self._version = 0
        self._closed = False

    async def open(self) -> None:
        """Starts all engines, at once.

        Raises:
            RlrunError: One does not start.
        """
        await asyncio.gather(*(self.ready(engine) for engine in self.engines))

    async def give(self, version: int, weights: Any) -> None:
        """Gives weights to all engines that can take work.

        One that is being started is not waited for: it takes the newest weights before any work.

        Args:
            version: Of the weights.
            weights: A reference to the packed ones.

        Raises:
            GenerationError: An engine cannot take them, or there is none.
        """
        self._proof.forget()
        self._version, self._weights = version, weights
        for engine, _ in await self.each("refit", version, weights):
            engine.version = version

    async def each(self, method: str, *arguments: Any) -> list[tuple[Engine, Any]]:
        """The answers of all engines that can take work; those that die over it are left out.

        Raises:
            GenerationError: A living engine failed, or none is left.
        """
        answers, died = await self._all_at_once(await self.up(), method, *arguments)
        if not answers:
            # Whatever took their place has the newest weights already.
            answers, died = await self._all_at_once(await self.up(), method, *arguments)
        if not answers:
            raise died[0]
        return answers

    async def prove(self, token_ids: tuple[int, ...]) -> dict[str, list[float]]:
        """Log-probs of a probe sequence by every engine that can take work, by its name.

        Engines that are started again later are compared with them before they take any.

        Raises:
            GenerationError: As ``each``.
        """
        scores: dict[str, list[float]] = {}
        asked: list[Any] = []
        # One that comes while others answer is asked as well; the last look and the note are one
        # act, so that none comes in between.
        while new := [engine for engine in await self.up() if engine.actor not in asked]:
            asked += [engine.actor for engine in new]
            answers, _ = await self._all_at_once(new, "prove", token_ids)
            for engine, found in answers:
                scores |= {f"{engine.name}{inner}": one for inner, one in found.items()}
        if scores:
            self._proof.note(token_ids, next(iter(scores.values())))
        return scores

    async def _all_at_once(
        self, engines: list[Engine], method: str, *arguments: Any
    ) -> tuple[list[tuple[Engine, Any]], list[GenerationError]]:
        asked = [(engine, engine.actor) for engine in engines]
        calls = [self.wait(engine, actor, method, *arguments) for engine, actor in asked]
        found = await asyncio.gather(*calls, return_exceptions=True)
        answers, died = [], []
        for (engine, actor), answer in zip(asked, found, strict=True):
            if not isinstance(answer, BaseException):
                answers.append((engine, answer))
            elif isinstance(answer, GenerationError) and engine.actor is not actor:
                log.warning("%s", answer)
                died.append(answer)
            else:
                raise answer
        return answers, died

    async def up(self) -> list[Engine]:
        """The engines that can take work; at least one.

        Raises:
            GenerationError: None can be started.
            TrainingError: One that was started again has other weights than it was given.
        """
        if self._disproved is not None:
            raise self._disproved
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
            start = partial(self._start, engine)
            engine.starting = asyncio.create_task(
                start() if self._weights is None else start_again(start)
            )
            engine.starting.add_done_callback(_log_failure)
        return engine.starting

    async def ready(self, engine: Engine) -> None:
        """Waits until an engine can take calls; starts it if need be."""
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
            self.lockstep = await self.wait(engine, actor, "start")
            while self._weights is not None and engine.version != self._version:
                version = self._version
                await self.wait(engine, actor, "refit", version, self._weights)
                engine.version = version
                await self._prove(engine, actor)
        except BaseException as error:
            end_actor(actor)
            engine.version = None
            if isinstance(error, TrainingError):
                self._disproved = error
            if isinstance(error, EnvironmentDown) and self._weights is not None:
                # In the middle of a run this is one more failure of generation, to be counted.
                raise GenerationError(engine.name, error.what, error.remedy) from None
            raise
        engine.actor = actor
        if engine.watch is not None:
            engine.watch.cancel()
        engine.watch = asyncio.create_task(self._watch(engine, actor))

    async def _watch(self, engine: Engine, actor: Any) -> None:
        """Ends a process that hangs; its calls then fail as those of one that died."""
        # What ended by itself is noticed by whoever calls it.
        with suppress(RayError):
            while engine.actor is actor:
                if not await ray_liveness.answers(actor):
                    log.warning("%s hangs; its process is killed", engine.name)
                    engine.hung = actor
                    end_actor(actor)
                    return
                await asyncio.sleep(ray_liveness.ASK_EVERY_S)

    async def _prove(self, engine: Engine, actor: Any) -> None:
        async def score(token_ids: Sequence[int]) -> list[float]:
            found = await self.wait(engine, actor, "prove", tuple(token_ids))
            return list(next(iter(found.values())))

        await self._proof.check(engine.name, score)

    async def wait(self, engine: Engine, actor: Any, method: str, *arguments: Any) -> Any:
        """The answer to a call.

        Raises:
            GenerationError: The engine failed; if it is dead, another one is being started.
        """
        if actor is None:
            raise GenerationError(engine.name, "its process died")
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
                what = str(error).splitlines()[0]
                raise GenerationError(engine.name, what, self._runtime.logs()) from None
            if engine.actor is actor:
                engine.actor = engine.version = None
                self._begin(engine)
            if engine.hung is actor:
                what = "its process hung and was killed"
                raise GenerationError(engine.name, what, self._runtime.logs()) from None
            remedy = f"If nobody killed it, memory is the likely cause. {self._runtime.logs()}"
            raise GenerationError(engine.name, "its process died", remedy) from None

    async def close(self) -> None:
        """Ends the engines. May be called twice."""
        self._closed = True
        for engine in self.engines:
            if engine.starting is not None:
                engine.starting.cancel()
                await asyncio.gather(engine.starting, return_exceptions=True)
            if engine.watch is not None:
                engine.watch.cancel()
            if engine.actor is None:
                continue
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.wrap_future(engine.actor.close.remote().future())
            except (RayError, TimeoutError) as error:
                log.info("%s does not close by itself", engine.name, exc_info=error)
            end_actor(engine.actor)
            engine.actor = None


def _log_failure(start: asyncio.Task[None]) -> None:
    if not start.cancelled() and start.exception() is not None:
        log.warning("%s", start.exception())
