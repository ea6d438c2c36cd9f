# SPDX-License-Identifier: Apache-2.0
"""Static batches: the rows of a batch start together and leave one by one."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

from rlrun.generation.rows import Row
from rlrun.generation.sampler import Sampler
from rlrun.types import Completion, GenerationRequest

COMPACT_BELOW = 0.75
"""Finished rows leave the batch once at most this share of it is still running: a copy of the
cache each time, against a part of every forward pass for each row that stays."""


class Cancelled(Exception):
    """A call was given up.

    Args:
        tokens: That were sampled for it.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.tokens = tokens


class StaticBatches:
    """Answers requests in batches of at most ``max_batch_size`` (None: all at once)."""

    def __init__(self, sampler: Sampler, max_batch_size: int | None) -> None:
        self.sampler, self.max_batch_size = sampler, max_batch_size

    def __call__(self, requests: Sequence[GenerationRequest], cancelled: Event) -> list[Completion]:
        """Completions in the order of the requests.

        Raises:
            Cancelled: ``cancelled`` was set before all were there.
            GenerationError: A request does not fit the model, or the model's output is not finite.
        """
        for request in requests:
            self.sampler.check(request)
        rows = [Row.of(request) for request in requests]
        size = self.max_batch_size or len(rows)
        with self.sampler.evaluation():
            for start in range(0, len(rows), size):
                if not cancelled.is_set():
                    self._answer(rows[start : start + size], cancelled)
        if cancelled.is_set():
            raise Cancelled(sum(len(row.tokens) for row in rows))
        return [row.completion() for row in rows]

    def _answer(self, rows: list[Row], cancelled: Event) -> None:
        """Completes the rows of one batch."""
        batch = self.sampler.begin(rows)
        while not cancelled.is_set():
            running = [i for i, row in enumerate(batch.rows) if row.stop_reason is None]
            if not running:
                return
            if len(running) <= COMPACT_BELOW * len(batch.rows):
                batch.select([batch.rows[i] for i in running], running)
            self.sampler.step(batch)
