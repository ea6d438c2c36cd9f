# SPDX-License-Identifier: Apache-2.0
"""Proves after a refit that engines have the learner's weights: both score the same sequence."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import cycle, islice

from rlrun.errors import TrainingError
from rlrun.interfaces import Generator, Precision
from rlrun.process.compute import compute

PROBE_TOKENS = 48
"""More than one block of an engine's cache, so that a cache of old weights is found; few enough to
cost milliseconds."""

TOLERANCE: Mapping[Precision, float] = {Precision.FLOAT32: 2e-3, Precision.BFLOAT16: 0.3}
"""Largest difference of a token's log-prob, in nats. What rounding leaves is about a hundredth of
it in float32 and a fifth in bfloat16; a tensor that is missing or stale differs by far more."""


class Proof:
    """What engines that have the right weights answered to the last probe.

    An engine that is started again after it is compared with them, rather than with the learner,
    whose weights may be changing by then.

    Args:
        precision: Of the engines.
    """

    def __init__(self, precision: Precision) -> None:
        self._tolerance = TOLERANCE[precision]
        self._noted: tuple[tuple[int, ...], list[float]] | None = None

    def forget(self) -> None:
        """A refit begins: its own probe, which asks all engines, will say more."""
        self._noted = None

    def note(self, token_ids: Sequence[int], scores: Sequence[float]) -> None:
        """A probe was answered; if it was wrong, the run ends."""
        self._noted = tuple(token_ids), list(scores)

    async def check(
        self, name: str, score: Callable[[Sequence[int]], Awaitable[list[float]]]
    ) -> None:
        """Compares an engine that was started again, before it takes any request.

        Args:
            name: Of the engine.
            score: Its log-probs of a sequence.

        Raises:
            TrainingError: It differs by more than the tolerance.
        """
        if self._noted is None:
            return
        token_ids, expected = self._noted
        difference = largest_difference(await score(token_ids), expected)
        # Also refuses a NaN.
        if not difference <= self._tolerance:
            raise TrainingError(
                name,
                "it was started again and does not compute with the weights of the last refit: "
                f"log-probs of the probe sequence differ by up to {difference:.3g} nats, and "
                f"{self._tolerance:g} is tolerated",
                "The run cannot go on with such samples; docs/generation.md says what may be the "
                "cause",
            )


class Probe:
    """Compares an engine's log-probs of a fixed sequence with the learner's.

    Args:
        generator: Whose engines are compared; one that shares the learner's weights has none.
        learner_scores: Log-probs of every token but the first at temperature 1, by the learner.
        token_ids: What the sequence is made of, repeated or cut.
        max_tokens: Length of a sequence that generator and learner can take.
        precision: Of learner and engines.
    """

    def __init__(
        self,
        generator: Generator,
        learner_scores: Callable[[Sequence[int]], Sequence[float]],
        *,
        token_ids: Sequence[int],
        max_tokens: int,
        precision: Precision,
    ) -> None:
        self._generator, self._learner_scores = generator, learner_scores
        self.token_ids = tuple(islice(cycle(token_ids), min(PROBE_TOKENS, max_tokens)))
        self.tolerance = TOLERANCE[precision]

    async def check(self, version: int) -> float | None:
        """The largest difference in nats; None where there is nothing to compare.

        Raises:
            TrainingError: An engine differs by more than the tolerance, or the learner's own
                log-probs are not finite.
            GenerationError: An engine failed.
        """
        scoring = asyncio.create_task(self._generator.engine_scores(self.token_ids))
        # A generator without engines of its own says so at once; the others score meanwhile.
        try:
            await asyncio.wait([scoring], timeout=0)
            if scoring.done() and not scoring.result():
                return None
            expected = await compute(self._learner_scores, self.token_ids)
            engines = await scoring
        finally:
            scoring.cancel()
        if not all(map(math.isfinite, expected)):
            raise TrainingError(
                f"weight version {version}",
                "the learner's log-probs of the probe sequence are not finite: the weights have "
                "diverged",
                "Lower policy.optimizer.lr, or go on from an earlier checkpoint",
            )
        differences = {
            name: largest_difference(scores, expected) for name, scores in engines.items()
        }
        for name, difference in differences.items():
            # Also refuses a NaN.
            if not difference <= self.tolerance:
                raise TrainingError(
                    f"refit to weight version {version}",
                    f"{name} does not compute with the learner's weights: log-probs of the probe "
                    f"sequence differ by up to {difference:.3g} nats, and {self.tolerance:g} is "
                    "tolerated",
                    "The run cannot go on with such samples; docs/generation.md says what may be "
                    "the cause",
                )
        return max(differences.values())


def largest_difference(left: Sequence[float], right: Sequence[float]) -> float:
    """The largest absolute difference of two sequences of one length; NaN if one is among them."""
    differences = [abs(a - b) for a, b in zip(left, right, strict=True)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)
