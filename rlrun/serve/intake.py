# SPDX-License-Identifier: Apache-2.0
"""Between the clients and the generator: who waits, what is sampled together, who is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.errors import GenerationError
from rlrun.generation.abandoned import Abandoned, tokens_in, tokens_of
from rlrun.interfaces import Generator
from rlrun.types import Completion, GenerationRequest


@dataclass(slots=True, eq=False)
class _Asked:
    """What one client waits for."""

    requests: Sequence[GenerationRequest]
    future: asyncio.Future[list[Completion]]


class Intake:
    """Hands requests to a generator that may be held and may be replaced.

    An engine that batches by itself is given each client's requests at once. A lockstep one is
    given all that have come while its last batch ran, as one batch: alone they would queue up.
    """

    def __init__(self, generator: Generator) -> None:
        """Is held until the first ``release``."""
        self._generator = generator
        self._held = True
        self._closed = False
        self._waiting: list[_Asked] = []
        self._running: dict[asyncio.Task[list[Completion]], list[_Asked]] = {}

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Completions in the order of the requests. Cancelling it takes them back.

        Raises:
            GenerationError: The engine failed, or the intake is closed.
            Abandoned: It was cancelled; says how many tokens had been sampled.
        """
        if self._closed:
            raise _closing()
        asked = _Asked(requests, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._start()
        try:
            return await asked.future
        except asyncio.CancelledError:
            raise Abandoned(await self._withdraw(asked)) from None

    async def hold(self) -> None:
        """Starts nothing more, and returns once nothing is being sampled."""
        self._held = True
        while self._running:
            await asyncio.wait(list(self._running))

    def release(self) -> None:
        """Goes on with what waits."""
        self._held = False
        self._start()

    def replace(self, generator: Generator) -> None:
        """Asks this generator from now on, for what another one has not answered yet as well."""
        self._generator = generator
        unanswered = [asked for batch in self._running.values() for asked in batch]
        tasks = list(self._running)
        self._running.clear()
        for task in tasks:
            task.cancel()
        self._waiting = [asked for asked in unanswered if not asked.future.done()] + self._waiting
        self._start()

    async def close(self) -> None:
        """Ends what is being sampled and refuses everything from now on. May be called twice."""
        self._closed = True
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        for asked in [*self._waiting, *(one for batch in self._running.values() for one in batch)]:
            if not asked.future.done():
                asked.future.set_exception(_closing())
        self._waiting.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        if self._held or not self._waiting:
            return
        if not self._generator.lockstep:
            batches = [[asked] for asked in self._waiting]
        elif self._running:
            return
        else:
            batches = [self._waiting]
        self._waiting = []
        for batch in batches:
            requests = [request for asked in batch for request in asked.requests]
            task = asyncio.create_task(self._generator.generate(requests))
            self._running[task] = batch
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[list[Completion]]) -> None:
        error = _cancelled() if task.cancelled() else task.exception()
        batch = self._running.pop(task, None)
        if batch is not None:
            answers = [] if error is not None else task.result()
            for asked in batch:
                answer, answers = answers[: len(asked.requests)], answers[len(asked.requests) :]
                if asked.future.done():
                    continue
                if error is not None:
                    asked.future.set_exception(error)
                else:
                    asked.future.set_result(answer)
        self._start()

    async def _withdraw(self, asked: _Asked) -> int:
        """Takes requests back; how many tokens their engine had sampled, if it says so."""
        if asked in self._waiting:
            self._waiting.remove(asked)
            return 0
        for task, batch in self._running.items():
            # While others in the batch want theirs, all go on, and nobody knows of one alone.
            if asked in batch and all(one.future.done() for one in batch):
                task.cancel()
                await asyncio.wait([task])
                return tokens_of(task, tokens_in)
        return 0


def _cancelled() -> GenerationError:
    return GenerationError("http server", "the engine gave the request up", "Ask again")


def _closing() -> GenerationError:
    return GenerationError("http server", "the run is ending", "Ask another run")
