# SPDX-License-Identifier: Apache-2.0
"""The age bound's arithmetic against brute force over all batches and all later steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from hypothesis import assume, given
from hypothesis import strategies as st

from rlrun.interfaces import ReadyGroup
from rlrun.scheduler.feasibility import first_violation, needs, select, to_expire

VERSION = 6


def can_all_be_trained(left: Sequence[int], size: int, age: int, version: int) -> bool:
    """Whether steps from ``version`` on, earliest deadline first, keep the bound."""
    queue = sorted(left)
    while queue:
        if version - queue[0] > age:
            return False
        queue, version = queue[size:], version + 1
    return True


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, int, list[int], list[int]]:
    """(P, A, versions of ready groups, versions of running groups) that a scheduler can be in."""
    size, age = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    versions = st.integers(VERSION - age, VERSION)
    ready = draw(st.lists(versions, min_size=size, max_size=5))
    running = sorted(draw(st.lists(versions, max_size=4)))
    assume(can_all_be_trained([*ready, *running], size, age, VERSION))
    return size, age, ready, running


def is_feasible(batch: Sequence[int], case: tuple[int, int, list[int], list[int]]) -> bool:
    size, age, ready, running = case
    left = Counter([*ready, *running]) - Counter(batch)
    return can_all_be_trained(list(left.elements()), size, age, VERSION + 1)


@given(situations())
def test_violation_is_found_exactly_when_no_batch_is_feasible(
    case: tuple[int, int, list[int], list[int]],
) -> None:
    size, age, ready, running = case
    possible = any(is_feasible(batch, case) for batch in combinations(ready, size))
    assert (first_violation(Counter(running), size, age, VERSION) is None) == possible


@given(situations(), st.randoms(use_true_random=False))
def test_selected_batch_is_feasible_and_follows_the_ranking_as_long_as_it_can(
    case: tuple[int, int, list[int], list[int]], random: st.DataObject
) -> None:
    size, age, ready, running = case
    assume(first_violation(Counter(running), size, age, VERSION) is None)
    groups = [ReadyGroup(n, version, version, n) for n, version in enumerate(ready)]
    ranked = list(groups)
    random.shuffle(ranked)  # type: ignore[attr-defined]
    required = needs(Counter(running), Counter(ready), size, size, age, VERSION)
    chosen = select(groups, ranked, required, size)
    assert len({group.position for group in chosen}) == size
    assert is_feasible([group.oldest_version for group in chosen], case)
    kept = next((n for n in range(size) if chosen[n] is not ranked[n]), size)
    if kept < size:
        first = [group.oldest_version for group in ranked[: kept + 1]]
        rest = [group.oldest_version for group in ranked[kept + 1 :]]
        others = combinations(rest, size - kept - 1)
        assert not any(is_feasible([*first, *other], case) for other in others)


@given(situations(), st.data())
def test_fewest_groups_are_expired(
    case: tuple[int, int, list[int], list[int]], data: st.DataObject
) -> None:
    size, age, ready, running = case
    may = data.draw(st.lists(st.booleans(), min_size=len(running), max_size=len(running)))
    firm = Counter(version for version, flag in zip(running, may, strict=True) if not flag)
    assume(first_violation(dict(sorted(firm.items())), size, age, VERSION) is None)
    chosen = to_expire(Counter(running), enumerate(may), size, age, VERSION)
    assert all(may[index] for index in chosen)

    def clears(indices: Sequence[int]) -> bool:
        left = Counter(v for index, v in enumerate(running) if index not in indices)
        return first_violation(left, size, age, VERSION) is None

    assert clears(chosen)
    candidates = [index for index, flag in enumerate(may) if flag]
    if chosen:
        assert not any(clears(fewer) for fewer in combinations(candidates, len(chosen) - 1))


def test_masking_asks_for_no_more_than_there_is() -> None:
    running, ready = {0: 3, 5: 1}, {1: 1, 6: 3}
    assert needs(running, ready, size=2, prompts_per_step=2, max_age=1, version=6) == [
        (1, 1),
        (5, 1),
        (6, 2),
    ]
