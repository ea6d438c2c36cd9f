# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of the prompt stream: what comes next, what is to be redone, what ended how.

A position below ``next_position`` that is neither to be redone nor held elsewhere has ended, so no
set of ended positions is needed: memory is bounded by what is outstanding.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rlrun.scheduler.events import Outcome


@dataclass(slots=True)
class History:
    """What a prompt that did not succeed at once has behind it."""

    attempt: int = 0
    failures: int = 0
    expiries: int = 0


class Frontier:
    """Hands out positions, lowest first, those to be redone before new ones.

    Attributes:
        next_position: The lowest position that was never handed out.
        total: Length of the stream, or None.
    """

    __slots__ = (
        "_again",
        "_closed",
        "_counts",
        "_ended_at",
        "_history",
        "_rows",
        "next_position",
        "total",
    )

    def __init__(self, rows_per_epoch: int, total: int | None) -> None:
        """Starts at position 0."""
        self.next_position = 0
        self.total = total
        self._ended_at: int | None = None
        self._rows = rows_per_epoch
        self._again: list[int] = []
        self._history: dict[int, History] = {}
        self._counts: dict[int, dict[Outcome, int]] = {}
        self._closed: dict[str, int] = {"epochs": 0, **{o.value: 0 for o in Outcome}}

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to hand out."""
        return not self._again and self.total is not None and self.next_position >= self.total

    def take(self) -> tuple[int, int] | None:
        """The next (position, attempt), or None at the end."""
        if self._again:
            position = heapq.heappop(self._again)
            history = self._history.get(position)
            return position, 0 if history is None else history.attempt
        if self.total is not None and self.next_position >= self.total:
            return None
        self.next_position += 1
        return self.next_position - 1, 0

    def failures(self, position: int) -> int:
        """How often the prompt failed."""
        history = self._history.get(position)
        return 0 if history is None else history.failures

    def expiries(self, position: int) -> int:
        """How often the prompt expired."""
        history = self._history.get(position)
        return 0 if history is None else history.expiries

    def give_back(self, position: int) -> None:
        """The prompt is to be redone under the same attempt."""
        heapq.heappush(self._again, position)

    def redo(self, position: int, *, failures: int = 0, expiries: int = 0) -> None:
        """The prompt is to be redone under a new attempt."""
        history = self._history.setdefault(position, History())
        history.attempt += 1
        history.failures += failures
        history.expiries += expiries
        heapq.heappush(self._again, position)

    def end(self, outcomes: Mapping[int, Outcome]) -> list[int]:
        """Prompts ended; the epochs that thereby ended."""
        rows, counts, history = self._rows, self._counts, self._history
        touched = set()
        for position, outcome in outcomes.items():
            if history:
                history.pop(position, None)
            epoch = position // rows
            if epoch not in touched:
                touched.add(epoch)
                counts.setdefault(epoch, dict.fromkeys(Outcome, 0))
            counts[epoch][outcome] += 1
        return [epoch for epoch in sorted(touched) if self._close(epoch)]

    def _close(self, epoch: int) -> bool:
        """Keeps of an epoch whose prompts have all ended only the sums."""
        if sum(self._counts[epoch].values()) < self._rows:
            return False
        for name, count in self._counts.pop(epoch).items():
            self._closed[name] += count
        self._closed["epochs"] += 1
        return True

    def limit(self, total: int) -> None:
        """The stream has ``total`` positions; later ones that are to be redone are dropped."""
        self.total = self._ended_at = total
        self.next_position = min(self.next_position, total)
        self._again = [position for position in self._again if position < total]
        heapq.heapify(self._again)
        self._history = {p: history for p, history in self._history.items() if p < total}

    def outcomes(self) -> dict[str, int]:
        """Prompts by outcome, over all epochs."""
        return {
            outcome.value: self._closed[outcome]
            + sum(counts[outcome] for counts in self._counts.values())
            for outcome in Outcome
        }

    def state(self) -> dict[str, Any]:
        """JSON-able state; its size depends on what is outstanding, not on the run's length."""
        return {
            "next_position": self.next_position,
            "ended_at": self._ended_at,
            "again": sorted(self._again),
            "history": [
                [position, h.attempt, h.failures, h.expiries]
                for position, h in sorted(self._history.items())
            ],
            "open_epochs": [
                [epoch, *(counts[outcome] for outcome in Outcome)]
                for epoch, counts in sorted(self._counts.items())
            ],
            "closed_epochs": dict(self._closed),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], rows_per_epoch: int, total: int | None) -> Self:
        """Inverse of ``state``; a stream that was found to end stays ended."""
        ended_at = state["ended_at"]
        frontier = cls(rows_per_epoch, total if ended_at is None else ended_at)
        frontier._ended_at = ended_at
        frontier.next_position = state["next_position"]
        frontier._again = list(state["again"])
        frontier._history = {p: History(*numbers) for p, *numbers in state["history"]}
        frontier._counts = {
            epoch: dict(zip(Outcome, counts, strict=True))
            for epoch, *counts in state["open_epochs"]
        }
        frontier._closed = dict(state["closed_epochs"])
        return frontier
