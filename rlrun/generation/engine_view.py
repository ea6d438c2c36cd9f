# SPDX-License-Identifier: Apache-2.0
"""One engine of a generator, seen as a generator: requests stay with it while it is alive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rlrun.interfaces import Generator
from rlrun.types import Completion, GenerationRequest

Answer = Callable[[Sequence[GenerationRequest]], Awaitable[list[Completion]]]


class EngineView(Generator):
    """All engines, of which one answers as long as it is alive.

    Args:
        whole: All of them; they batch by themselves.
        answer: Asks that one first.
    """

    lockstep = False

    def __init__(self, whole: Generator, answer: Answer) -> None:
        self._whole, self._answer = whole, answer

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See ``Generator.generate``."""
        return await self._answer(requests) if requests else []

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Generator.score``: by any of them."""
        return await self._whole.score(token_ids)

    async def refit(self, version: int) -> None:
        """See ``Generator.refit``: all of them are."""
        await self._whole.refit(version)

    async def close(self) -> None:
        """Closes nothing: the whole is closed by who made it."""
