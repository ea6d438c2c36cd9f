# SPDX-License-Identifier: Apache-2.0
"""Static batches on the learner's own network, one call after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Event

from rlrun.errors import GenerationError
from rlrun.generation.learners_model import OnLearnersModel, named, sampled_tokens
from rlrun.generation.sampler import WHERE
from rlrun.generation.static_batch import StaticBatches
from rlrun.interfaces import Abandoned
from rlrun.process.compute import compute, finish_computing
from rlrun.types import Completion, GenerationRequest


class StaticGenerator(OnLearnersModel):
    """Answers each call as static batches; calls take turns."""

    lockstep = True

    def __init__(self, batches: StaticBatches) -> None:
        """Starts at weight version 0."""
        super().__init__(batches.sampler)
        self._batches = batches

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See ``Generator.generate``. Cancelling it ends the batch within one token."""
        if self._closed:
            raise GenerationError(WHERE, "the generator is closed")
        if not requests:
            return []
        cancelled = Event()
        with self.at_work("the learner's model"), named(f"sampling {len(requests)} completions"):
            future = asyncio.ensure_future(compute(self._batches, requests, cancelled))
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                cancelled.set()
                # Until the thread has left the model, nobody else may touch it.
                await asyncio.wait([future])
                raise Abandoned(sampled_tokens(future)) from None

    async def close(self) -> None:
        """Returns after the batch that may be on its way."""
        self._closed = True
        await finish_computing()
