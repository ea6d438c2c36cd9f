# SPDX-License-Identifier: Apache-2.0
"""checkpointing.checkpoint_must_save_by: stop in time to save before the job is taken away.

The clock starts with the process, not with the first step, since loading a model counts for the job
scheduler too. After each step the run asks whether another step, its validation if it has one, and
a save still fit; if not it saves and ends. The estimate of a step is the longest of the last five,
that of a validation or a save the longest so far (of a save before the first one, that of a step),
all with a quarter added: time beyond the limit costs the run, time before it little.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable

MARGIN = 1.25
RECENT = 5

_IMPORTED = time.monotonic()


def process_seconds() -> float:
    """Seconds since this process started (on systems without /proc: since rlrun was imported)."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            # The command, in parentheses, may hold anything; fields count from behind it.
            fields = file.read().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, AttributeError, IndexError, ValueError):
        return time.monotonic() - _IMPORTED


class TimeLimit:
    """Whether the next step still fits before the limit."""

    def __init__(
        self,
        must_save_by_seconds: float | None,
        clock: Callable[[], float] = process_seconds,
    ) -> None:
        """Sets the limit.

        Args:
            must_save_by_seconds: By when, counted from the start of the process, a checkpoint must
                be complete; None for no limit.
            clock: Seconds since the start of the process.
        """
        self._limit = must_save_by_seconds
        self._clock = clock
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._longest_validation = 0.0
        self._longest_save: float | None = None

    def step_took(self, seconds: float) -> None:
        """Notes the duration of a step without validation and saving."""
        self._steps.append(seconds)

    def validation_took(self, seconds: float) -> None:
        """Notes the duration of a validation."""
        self._longest_validation = max(seconds, self._longest_validation)

    def save_took(self, seconds: float) -> None:
        """Notes the duration of a save."""
        self._longest_save = max(seconds, self._longest_save or 0.0)

    def reached(self, *, validates: bool) -> bool:
        """Whether the run must save now and stop, since a step and a save would end too late.

        Args:
            validates: Whether the next step ends with a validation.
        """
        if self._limit is None:
            return False
        step = max(self._steps, default=0.0)
        save = step if self._longest_save is None else self._longest_save
        validation = self._longest_validation if validates else 0.0
        return self._clock() + MARGIN * (step + validation + save) >= self._limit
