# SPDX-License-Identifier: Apache-2.0
"""generation=transformers: samples with the learner's network, or with a copy in a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from rlrun.abandoned import tokens_in
from rlrun.compute import compute, finish_computing
from rlrun.errors import GenerationError
from rlrun.interfaces import (
    Abandoned,
    Generation,
    Generator,
    GeneratorInputs,
    Precision,
    component,
    setting,
)
from rlrun.types import Completion, GenerationRequest

if TYPE_CHECKING:
    from rlrun.generation.sampler import Sampler
    from rlrun.generation.static_batch import StaticBatches


WHERE = "generation=transformers"


@component("generation/transformers")
@dataclass(kw_only=True, slots=True)
class TransformersGeneration(Generation):
    """Batches on a transformers model, which may be the one that is being trained."""

    max_batch_size: int | None = setting(ge=1)

    async def start(self, inputs: GeneratorInputs) -> Generator:
        """Samples from the learner's network where it is, or from a copy in another process.

        In turns with the learner no copy is needed: an update is seen by the next batch. Beside it
        the generator has weights of its own.
        """
        import torch

        if inputs.concurrent:
            return self._process(inputs)

        from rlrun.generation.continuous import ContinuousGenerator
        from rlrun.generation.continuous_batch import ContinuousBatch
        from rlrun.generation.sampler import Sampler
        from rlrun.generation.static_batch import StaticBatches

        autocast = torch.bfloat16 if inputs.policy.precision is Precision.BFLOAT16 else None
        sampler = Sampler(inputs.model, inputs.renderer, autocast)
        if inputs.ordered:
            return TransformersGenerator(StaticBatches(sampler, self.max_batch_size))
        return ContinuousGenerator(ContinuousBatch(sampler, self.max_batch_size))

    def _process(self, inputs: GeneratorInputs) -> Generator:
        from rlrun.generation.process import ProcessGenerator
        from rlrun.generation.process_pipe import StartUp

        start_up = StartUp(
            policy=inputs.policy,
            max_batch_size=self.max_batch_size,
            ordered=inputs.ordered,
            recompute_kv_cache=inputs.recompute_kv_cache,
            deterministic=inputs.deterministic,
            num_threads=inputs.num_threads,
            device=inputs.model.device.type,
        )
        return ProcessGenerator(start_up, inputs)


class OnLearnersModel(Generator):
    """What generators on the learner's own network have in common.

    They compute in the thread where the learner does: the event loop goes on answering signals,
    timers and connections during a batch, and calls cannot overlap on the model.
    """

    def __init__(self, sampler: Sampler) -> None:
        """Starts at weight version 0."""
        self._sampler = sampler
        self._closed = False

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Generator.score``; it waits for the batch, or the tokens, that are sampled."""
        with named(f"scoring {len(token_ids)} tokens"):
            return await compute(self._sampler.score, token_ids)

    async def refit(self, version: int) -> None:
        """Names the weights; the parameters themselves are the learner's, already in place."""
        self._sampler.version = version


class TransformersGenerator(OnLearnersModel):
    """Static batches: one call after the other."""

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


def sampled_tokens(future: asyncio.Future[list[Completion]]) -> int:
    """Tokens of a call that is over, and that somebody cancelled."""
    from rlrun.generation.static_batch import Cancelled

    error = future.exception()
    if isinstance(error, Cancelled):
        return error.tokens
    return 0 if error is not None else tokens_in(future.result())


@contextmanager
def named(what: str) -> Iterator[None]:
    """Says what failed where the model or torch raise something of their own."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError) as error:
        raise GenerationError(
            WHERE,
            f"{what} failed: {error}",
            "Out of memory: lower generation.max_batch_size",
        ) from error
