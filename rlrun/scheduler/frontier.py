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
class Tries:
    """How often a prompt was tried, of one that did not succeed at once."""

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
        "_rows",
        "_tries",
        "next_position",
        "total",
    )

    def __init__(self, rows_per_epoch: int, total: int | None) -> None:
        """Starts at position 0."""
        self.next_position = 0
        self.total = total
        self._rows = rows_per_epoch
        self._again: list[int] = []
        self._tries: dict[int, Tries] = {}
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
            tries = self._tries.get(position)
            return position, 0 if tries is None else tries.attempt
        if self.total is not None and self.next_position >= self.total:
            return None
        self.next_position += 1
        return self.next_position - 1, 0

    def failures(self, position: int) -> int:
        """How often the prompt failed."""
        tries = self._tries.get(position)
        return 0 if tries is None else tries.failures

    def expiries(self, position: int) -> int:
        """How often the prompt expired."""
        tries = self._tries.get(position)
        return 0 if tries is None else tries.expiries

    def give_back(self, position: int) -> None:
        """The prompt is to be redone under the same attempt."""
        heapq.heappush(self._again, position)

    def redo(self, position: int, *, failures: int = 0, expiries: int = 0) -> None:
        """The prompt is to be redone under a new attempt."""
        tries = self._tries.setdefault(position, Tries())
        tries.attempt += 1
        tries.failures += failures
        tries.expiries += expiries
        heapq.heappush(self._again, position)

    def end(self, outcomes: Mapping[int, Outcome]) -> list[int]:
        """Prompts ended; the epochs that thereby ended."""
        rows, counts, tries = self._rows, self._counts, self._tries
        touched = set()
        for position, outcome in outcomes.items():
            if tries:
                tries.pop(position, None)
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
            "again": sorted(self._again),
            "history": [
                [position, t.attempt, t.failures, t.expiries]
                for position, t in sorted(self._tries.items())
            ],
            "open_epochs": [
                [epoch, *(counts[outcome] for outcome in Outcome)]
                for epoch, counts in sorted(self._counts.items())
            ],
            "closed_epochs": dict(self._closed),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], rows_per_epoch: int, total: int | None) -> Self:
        """Inverse of ``state``."""
        frontier = cls(rows_per_epoch, total)
        frontier.next_position = state["next_position"]
        frontier._again = list(state["again"])
        frontier._tries = {p: Tries(*numbers) for p, *numbers in state["history"]}
        frontier._counts = {
            epoch: dict(zip(Outcome, counts, strict=True))
            for epoch, *counts in state["open_epochs"]
        }
        frontier._closed = dict(state["closed_epochs"])
        return frontier
