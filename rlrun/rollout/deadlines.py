# SPDX-License-Identifier: Apache-2.0
"""How long a trajectory group may take: as set, or derived from what groups took so far."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from dataclasses import dataclass, field

LEAST_GROUPS = 10
"""Groups that must have finished before anything is derived from them."""

FACTOR = 10.0
WINDOW = 1000


@dataclass(slots=True)
class Deadline:
    """A limit on the time of a group.

    Attributes:
        fixed_s: The limit in seconds, or None to derive it: FACTOR times the 99th percentile of
            the last WINDOW groups; no limit before LEAST_GROUPS finished.
        least_s: What is derived is not below it (an environment may take that long by itself);
            None derives nothing.
    """

    fixed_s: float | None
    least_s: float | None
    _recent: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def took(self, seconds: float) -> None:
        """A group finished."""
        insort(self._sorted, seconds)
        self._recent.append(seconds)
        if len(self._recent) > WINDOW:
            self._sorted.remove(self._recent.popleft())

    @property
    def limit_s(self) -> float | None:
        """Seconds that a group may take, by those that finished so far; None is no limit."""
        if self.fixed_s is not None:
            return self.fixed_s
        if self.least_s is None or len(self._sorted) < LEAST_GROUPS:
            return None
        percentile = self._sorted[math.ceil(0.99 * len(self._sorted)) - 1]
        return max(self.least_s, FACTOR * percentile)
