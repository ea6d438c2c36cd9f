# SPDX-License-Identifier: Apache-2.0
"""What is measured while a step runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class StepInProgress:
    """What is known of the running step so far.

    Attributes:
        metrics: Filled by the verbs.
        seconds: Wall time of the verbs.
        started: When the step began, by ``time.perf_counter``.
        busy: Seconds that the generator had been busy in the run before the step.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    busy: float = 0.0

    @contextmanager
    def timed(self, verb: str) -> Iterator[None]:
        """Measures the block as the time of a verb, if it succeeds."""
        started = time.perf_counter()
        yield
        self.seconds[verb] = time.perf_counter() - started

    def took(self, verb: str) -> None:
        """Counts all time since the step began as that of a verb."""
        self.seconds[verb] = time.perf_counter() - self.started
