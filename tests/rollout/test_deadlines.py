# SPDX-License-Identifier: Apache-2.0
"""How long a group may take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlrun.rollout.deadlines import FACTOR, LEAST_GROUPS, WINDOW, Deadline

LEAST_SECONDS = 60.0


def test_a_limit_that_is_set_is_the_limit() -> None:
    deadline = Deadline(3.0, LEAST_SECONDS)
    for _ in range(100):
        deadline.took(1000.0)
    assert deadline.limit_s == 3.0


def test_nothing_is_derived_from_a_few_groups() -> None:
    deadline = Deadline(None, LEAST_SECONDS)
    for _ in range(LEAST_GROUPS - 1):
        deadline.took(1.0)
    assert deadline.limit_s is None
    deadline.took(1.0)
    assert deadline.limit_s == LEAST_SECONDS


@given(st.lists(st.floats(0.1, 1e4), min_size=LEAST_GROUPS, max_size=300))
def test_no_group_of_the_usual_kind_is_given_up(times: list[float]) -> None:
    deadline = Deadline(None, LEAST_SECONDS)
    for seconds in times:
        deadline.took(seconds)
    limit = deadline.limit_s
    assert limit is not None
    within = sum(FACTOR * seconds <= limit for seconds in times)
    assert within > int(0.99 * (len(times) - 1)) or limit == LEAST_SECONDS


def test_what_happened_long_ago_is_forgotten() -> None:
    deadline = Deadline(None, LEAST_SECONDS)
    for seconds in [1e6] * WINDOW + [20.0] * WINDOW:
        deadline.took(seconds)
    assert deadline.limit_s == FACTOR * 20.0


def test_without_a_limit_of_the_environment_nothing_is_derived() -> None:
    deadline = Deadline(None, None)
    for _ in range(LEAST_GROUPS):
        deadline.took(1.0)
    assert deadline.limit_s is None
