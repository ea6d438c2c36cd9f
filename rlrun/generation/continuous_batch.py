# SPDX-License-Identifier: Apache-2.0
"""A continuous batch: rows join while others are being answered, and leave when they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rlrun.generation.rows import Row, Rows
from rlrun.generation.sampler import Sampler
from rlrun.types import Completion, GenerationRequest

COMPACT_BELOW = 0.9
"""Answered rows leave once at most this share of the rows is still running."""

JOIN_EVERY = 4
"""Tokens between two times that waiting rows join. To read their prompts is a forward pass of its
own, which costs a small model as much as a token of all rows together."""


class ContinuousBatch:
    """Answers calls as they come; nothing waits for the longest row of another call.

    Rows of a model whose layers cannot be joined (state-space layers, sliding windows) stay in the
    batch that they began in; several of those then take turns.

    Args:
        sampler: Whose model is used.
        max_rows: Rows that run at once; None for no limit. Others wait, first come first served.
    """

    def __init__(self, sampler: Sampler, max_rows: int | None) -> None:
        self.sampler, self.max_rows = sampler, max_rows
        self._calls: dict[int, list[Row]] = {}
        self._waiting: deque[Row] = deque()
        self._batches: list[Rows] = []
        self._since_join = JOIN_EVERY
        self._reread = False

    @property
    def busy(self) -> bool:
        """Whether any row is waiting or running."""
        return bool(self._waiting or self._batches)

    def add(self, call_id: int, requests: Sequence[GenerationRequest]) -> None:
        """Takes in a call.

        Raises:
            GenerationError: A request does not fit the model; none of the call was taken in.
        """
        for request in requests:
            self.sampler.check(request)
        rows = [Row.of(request) for request in requests]
        self._calls[call_id] = rows
        self._waiting.extend(rows)

    def cancel(self, call_id: int) -> int:
        """Gives a call up; the number of tokens that were sampled for it, 0 if it is unknown."""
        rows = self._calls.pop(call_id, None)
        if rows is None:
            return 0
        gone = {id(row) for row in rows}
        self._waiting = deque(row for row in self._waiting if id(row) not in gone)
        self._keep(lambda row: id(row) not in gone)
        return sum(len(row.tokens) for row in rows)

    def step(self) -> dict[int, list[Completion]]:
        """One token for every running row; the calls that are complete with it.

        Raises:
            GenerationError: The model's output is not finite.
        """
        with self.sampler.evaluation():
            if self._reread:
                self._begin_again()
            else:
                for batch in self._batches:
                    self.sampler.step(batch)
            self._join()
        self._keep(lambda row: row.stop_reason is None, COMPACT_BELOW)
        done = {call_id: rows for call_id, rows in self._calls.items() if _answered(rows)}
        for call_id in done:
            del self._calls[call_id]
        return {i: [row.completion() for row in rows] for i, rows in done.items()}

    def reread(self) -> None:
        """Has the states of all running rows computed anew, by weights that have just changed."""
        self._reread = True

    def _begin_again(self) -> None:
        self._reread = False
        running = [row for b in self._batches for row in b.rows if row.stop_reason is None]
        self._batches = [self.sampler.begin(running)] if running else []

    def drop_all(self) -> list[int]:
        """Forgets everything; the calls that were not answered."""
        unanswered = list(self._calls)
        self._calls, self._batches, self._reread = {}, [], False
        self._waiting.clear()
        return unanswered

    def _join(self) -> None:
        """Lets waiting rows in, if it is time and there is room."""
        self._since_join += 1
        if not self._waiting or (self._batches and self._since_join < JOIN_EVERY):
            return
        running = sum(row.stop_reason is None for b in self._batches for row in b.rows)
        room = len(self._waiting) if self.max_rows is None else self.max_rows - running
        rows = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        if not rows:
            return
        self._since_join = 0
        fresh = self.sampler.begin(rows)
        if self._batches and fresh.can_grow:
            self._batches[0].add(fresh)
        else:
            self._batches.append(fresh)

    def _keep(self, wanted: Callable[[Row], bool], at_most: float = 1.0) -> None:
        """Drops other rows of a batch if at most this share of it is wanted."""
        for batch in self._batches:
            kept = [i for i, row in enumerate(batch.rows) if wanted(row)]
            if not kept:
                batch.rows = []
            elif len(kept) < len(batch.rows) and len(kept) <= at_most * len(batch.rows):
                batch.select([batch.rows[i] for i in kept], kept)
                if batch.can_grow:
                    batch.trim()
        self._batches = [batch for batch in self._batches if batch.rows]


def _answered(rows: Sequence[Row]) -> bool:
    return all(row.stop_reason is not None for row in rows)
