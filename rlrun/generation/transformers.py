# SPDX-License-Identifier: Apache-2.0
"""generation=transformers: samples with the learner's own network, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from rlrun.errors import GenerationError
from rlrun.interfaces import Generation, Generator, Precision, component, setting
from rlrun.types import Completion, GenerationRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rlrun.generation.static_batch import StaticBatchSampler
    from rlrun.renderer import Renderer


@component("generation/transformers")
@dataclass(kw_only=True, slots=True)
class TransformersGeneration(Generation):
    """Static batches on a transformers model, which may be the one that is being trained."""

    max_batch_size: int | None = setting(ge=1)

    def start(
        self, model: PreTrainedModel, renderer: Renderer, precision: Precision
    ) -> TransformersGenerator:
        """The live generator.

        Args:
            model: A causal language model on its device. It is used where it is, not copied: an
                update of its parameters is seen by the next batch.
            renderer: Names the end-of-sequence tokens, and decodes where stop strings are set.
            precision: Arithmetic of the forward pass, the learner's own.
        """
        import torch

        from rlrun.generation.static_batch import StaticBatchSampler

        autocast = torch.bfloat16 if precision is Precision.BFLOAT16 else None
        return TransformersGenerator(
            StaticBatchSampler(model, renderer, self.max_batch_size, autocast)
        )


class TransformersGenerator(Generator):
    """The sampler behind the generation slot.

    It computes in one thread of its own, so that the event loop goes on answering signals, timers
    and connections during a batch, and calls cannot overlap on the model.
    """

    lockstep = True

    def __init__(self, sampler: StaticBatchSampler) -> None:
        """Starts at weight version 0."""
        self._sampler = sampler
        self._version = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generation")

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See ``Generator.generate``. Cancelling it ends the batch within one token."""
        if not requests:
            return []
        cancelled = Event()
        try:
            future = asyncio.get_running_loop().run_in_executor(
                self._thread, self._sampler, requests, self._version, cancelled
            )
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                cancelled.set()
                # Until the thread has left the model, nobody else may touch it.
                await asyncio.wait([future])
                raise
        except (RuntimeError, ValueError, IndexError) as error:
            raise GenerationError(
                "generation=transformers",
                f"sampling {len(requests)} completions failed: {error}",
                "Out of memory: lower generation.max_batch_size",
            ) from error

    async def refit(self, version: int) -> None:
        """Names the weights; the parameters themselves are the learner's, already in place."""
        self._version = version

    async def close(self) -> None:
        """Ends the thread, after the batch that it may be working on."""
        await asyncio.to_thread(self._thread.shutdown)
