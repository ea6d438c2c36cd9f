# SPDX-License-Identifier: Apache-2.0
"""A continuous batch on the learner's own network, for calls that come one by one.

Agents ask when they like. With static batches the first one to ask would be answered alone, while
all others wait until that is done, and so at every turn.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from rlrun.errors import GenerationError, TrainingError
from rlrun.generation.continuous_batch import ContinuousBatch
from rlrun.generation.learners_model import OnLearnersModel, named, sampled_tokens
from rlrun.generation.sampler import WHERE
from rlrun.generation.static_batch import Cancelled
from rlrun.interfaces import Abandoned
from rlrun.process.compute import compute, finish_computing
from rlrun.types import Completion, GenerationRequest

STEPS = 64
"""Tokens after which whoever else computes in the thread gets a turn."""

Outcome = list[Completion] | Exception
Deliver = Callable[[int, Outcome], None]


@dataclass(frozen=True, slots=True)
class _Call:
    """Requests that are answered together."""

    number: int
    requests: tuple[GenerationRequest, ...]


class ContinuousGenerator(OnLearnersModel):
    """Answers calls as they come, in the thread where the learner computes.

    Nothing may change the weights while a call is unanswered.
    """

    lockstep = False

    def __init__(self, batch: ContinuousBatch) -> None:
        """Starts at weight version 0."""
        super().__init__(batch.sampler)
        self._batch = batch
        # What the thread has not read yet: calls, and numbers of calls that are given up.
        self._inbox: SimpleQueue[_Call | int] = SimpleQueue()
        self._answers: dict[int, asyncio.Future[list[Completion]]] = {}
        self._numbers = itertools.count()
        self._running: asyncio.Task[None] | None = None

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See ``Generator.generate``. Cancelling it ends its requests within one token."""
        if self._closed:
            raise GenerationError(WHERE, "the generator is closed")
        if not requests:
            return []
        call = _Call(next(self._numbers), tuple(requests))
        answer = asyncio.get_running_loop().create_future()
        self._answers[call.number] = answer
        with self.at_work("the learner's model"):
            self._tell(call)
            try:
                return await asyncio.shield(answer)
            except asyncio.CancelledError:
                self._tell(call.number)
                await asyncio.wait([answer])
                raise Abandoned(sampled_tokens(answer)) from None

    async def close(self) -> None:
        """Returns when all calls are answered."""
        self._closed = True
        if self._running is not None:
            await asyncio.wait([self._running])
        await finish_computing()

    def _tell(self, message: _Call | int) -> None:
        self._inbox.put(message)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
            self._running.add_done_callback(self._ended)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()

        def deliver(number: int, outcome: Outcome) -> None:
            loop.call_soon_threadsafe(self._deliver, number, outcome)

        while self._batch.busy or not self._inbox.empty():
            await compute(self._work, deliver)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A mistake of ours must reach those who wait."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._batch.drop_all()
            for number in list(self._answers):
                self._deliver(number, GenerationError(WHERE, f"{type(error).__name__}: {error}"))

    def _deliver(self, number: int, outcome: Outcome) -> None:
        answer = self._answers.pop(number, None)
        if answer is None:
            return
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    # --- in the compute thread --------------------------------------------------------------------

    def _work(self, deliver: Deliver) -> None:
        for _ in range(STEPS):
            while not self._inbox.empty():
                self._take(self._inbox.get(), deliver)
            if not self._batch.busy:
                return
            try:
                with named("sampling"):
                    answered = self._batch.step()
            except (GenerationError, TrainingError) as error:
                for number in self._batch.drop_all():
                    deliver(number, error)
                return
            for number, completions in answered.items():
                deliver(number, completions)

    def _take(self, message: _Call | int, deliver: Deliver) -> None:
        if isinstance(message, int):
            deliver(message, Cancelled(self._batch.cancel(message)))
            return
        try:
            self._batch.add(message.number, message.requests)
        except GenerationError as error:
            deliver(message.number, error)
