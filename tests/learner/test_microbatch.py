# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlrun.learner.microbatch import pack_by_tokens, split_by_tokens

LENGTHS = st.lists(st.integers(1, 50), max_size=40)


@given(lengths=LENGTHS, extra=st.integers(0, 200))
def test_every_sequence_is_in_exactly_one_microbatch(lengths: list[int], extra: int) -> None:
    budget = max(lengths, default=1) + extra
    parts = split_by_tokens(lengths, budget)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))


@given(lengths=LENGTHS, extra=st.integers(0, 200))
def test_padded_tokens_stay_within_the_budget(lengths: list[int], extra: int) -> None:
    budget = max(lengths, default=1) + extra
    for part in split_by_tokens(lengths, budget):
        assert len(part) * max(lengths[i] for i in part) <= budget


def test_the_largest_microbatch_comes_first() -> None:
    assert split_by_tokens([3, 9, 4, 9], 18) == [[1, 3], [2, 0]]


@given(lengths=LENGTHS, extra=st.integers(0, 200))
def test_packed_tokens_stay_within_the_budget_and_lose_nobody(
    lengths: list[int], extra: int
) -> None:
    budget = max(lengths, default=1) + extra
    parts = pack_by_tokens(lengths, budget)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in part) <= budget for part in parts)
    # No two microbatches could have been one.
    sums = sorted(sum(lengths[i] for i in part) for part in parts)
    assert len(sums) < 2 or sums[0] + sums[1] > budget
