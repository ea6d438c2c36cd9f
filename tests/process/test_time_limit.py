# SPDX-License-Identifier: Apache-2.0
"""A run stops in time to save."""

from __future__ import annotations

import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from rlrun.process.time_limit import MARGIN, TimeLimit, process_seconds


def test_without_a_limit_there_is_always_time() -> None:
    limit = TimeLimit(None, lambda: 1e12)
    limit.step_took(1e9)
    assert not limit.reached(validates=False)


def test_before_the_first_step_only_the_clock_counts() -> None:
    assert not TimeLimit(10, lambda: 9.9).reached(validates=True)
    assert TimeLimit(10, lambda: 10.0).reached(validates=False)


@given(
    st.lists(st.floats(0.1, 100), min_size=1, max_size=10),
    st.lists(st.floats(0.1, 100), max_size=3),
    st.lists(st.floats(0.1, 100), max_size=3),
    st.booleans(),
    st.floats(0, 2000),
)
def test_it_is_reached_exactly_if_a_long_step_and_a_save_no_longer_fit(
    steps: list[float], saves: list[float], validations: list[float], validates: bool, now: float
) -> None:
    limit = TimeLimit(1000, lambda: now)
    for seconds in steps:
        limit.step_took(seconds)
    for seconds in saves:
        limit.save_took(seconds)
    for seconds in validations:
        limit.validation_took(seconds)
    step = max(steps[-5:])
    save = max(saves) if saves else step
    validation = max(validations, default=0.0) if validates else 0.0
    late = now + MARGIN * (step + validation + save) >= 1000
    assert limit.reached(validates=validates) == late


def test_the_clock_counts_from_the_start_of_the_process() -> None:
    program = (
        "import time; time.sleep(0.3); from rlrun.process.time_limit import process_seconds\n"
        "print(process_seconds())"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert 0.28 < float(done.stdout) < time.monotonic() - started + 0.05
    assert process_seconds() > 0
