# SPDX-License-Identifier: Apache-2.0
"""10,000 arbitrary schedules: what the scheduler promises holds at every single event."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.properties.scheduler_driver import Run

CHUNKS, PER_CHUNK = 20, 500


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_promises_hold_over_random_schedules(chunk: int) -> None:
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        rng = random.Random(seed)
        try:
            Run(rng.randrange).play(events=rng.choice((10, 30, 60)))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 1000), max_size=300), st.integers(0, 80))
def test_all_promises_hold_over_schedules_that_shrink(numbers: list[int], events: int) -> None:
    left = iter(numbers)
    rng = random.Random(0)
    Run(lambda n: next(left, rng.randrange(1000)) % n).play(events)
