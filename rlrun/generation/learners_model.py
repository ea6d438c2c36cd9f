# SPDX-License-Identifier: Apache-2.0
"""What the generators on the learner's own network have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlrun.errors import GenerationError
from rlrun.generation.abandoned import tokens_in
from rlrun.generation.sampler import WHERE, Sampler
from rlrun.generation.static_batch import Cancelled
from rlrun.interfaces import Generator
from rlrun.process.compute import compute
from rlrun.types import Completion


class OnLearnersModel(Generator):
    """A generator on the learner's own network.

    It computes in the thread where the learner does: the event loop goes on answering signals,
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


def sampled_tokens(future: asyncio.Future[list[Completion]]) -> int:
    """Tokens of a call that is over, and that somebody cancelled."""
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
