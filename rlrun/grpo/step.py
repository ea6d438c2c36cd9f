# SPDX-License-Identifier: Apache-2.0
"""What is measured of a step while it runs."""

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
        busy: What the generator had been busy until then, in seconds.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    busy: float = 0.0

    @contextmanager
    def timed(self, verb: str) -> Iterator[None]:
        """Notes how long what is within it takes, if it succeeds."""
        started = time.perf_counter()
        yield
        self.seconds[verb] = time.perf_counter() - started

    def took(self, verb: str) -> None:
        """Notes that everything since the step began was this."""
        self.seconds[verb] = time.perf_counter() - self.started
