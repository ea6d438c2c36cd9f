# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.evaluation.pass_at_k import Z_95, estimates, interval, pass_at_k

COUNTS = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_all_choices_that_hold_a_right_sample(n: int) -> None:
    for c in range(n + 1):
        right = [i < c for i in range(n)]
        for k in range(1, n + 1):
            choices = [any(chosen) for chosen in combinations(right, k)]
            assert pass_at_k(n, c, k) == float(Fraction(sum(choices), len(choices)))


def test_pass_at_k_is_unbiased() -> None:
    """Its mean over binomial draws is 1 - (1 - p)^k, as the shortcut 1 - (1 - c/n)^k is not."""
    n, k, p = 6, 3, Fraction(1, 4)
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(w * Fraction(pass_at_k(n, c, k)) for c, w in enumerate(weights))
    assert float(mean) == pytest.approx(float(1 - (1 - p) ** k), abs=1e-15)


def test_large_counts_are_exact() -> None:
    assert pass_at_k(4096, 1, 2048) == 0.5
    assert pass_at_k(4096, 0, 2048) == 0.0
    assert pass_at_k(4096, 4096, 1) == 1.0


def test_k_are_the_powers_of_two_up_to_the_samples() -> None:
    assert [one.k for one in estimates([(6, 2), (6, 0)])] == [1, 2, 4]
    assert [one.k for one in estimates([(8, 2)])] == [1, 2, 4, 8]
    assert estimates([(0, 0)]) == []


def test_a_prompt_with_too_few_scored_samples_is_left_out_of_that_k_alone() -> None:
    found = estimates([(4, 4), (4, 0), (1, 1), (0, 0)])
    assert [(one.k, one.prompts) for one in found] == [(1, 3), (2, 2), (4, 2)]
    assert found[0].value == pytest.approx(2 / 3)
    assert found[1].value == 0.5


@given(counts=st.lists(COUNTS, min_size=1, max_size=30))
def test_an_estimate_lies_within_its_interval_and_grows_with_k(
    counts: list[tuple[int, int]],
) -> None:
    found = estimates(counts)
    for one in found:
        assert 0.0 <= one.low <= one.value <= one.high <= 1.0
        assert one.high > one.low
    complete = [one for one in found if one.prompts == len(counts)]
    assert [one.value for one in complete] == sorted(one.value for one in complete)


@given(n=st.integers(2, 400), c=st.integers(0, 400))
def test_with_one_sample_each_it_is_the_interval_of_wilson(n: int, c: int) -> None:
    """Its ends solve (mean - p)^2 = z^2 p (1 - p) / n."""
    mean = min(c, n) / n
    values = [1.0] * min(c, n) + [0.0] * (n - min(c, n))
    ends = np.roots([1 + Z_95**2 / n, -(2 * mean + Z_95**2 / n), mean**2])
    np.testing.assert_allclose(interval(values, 1.0), sorted(ends.real), atol=1e-9)


def test_like_samples_of_a_prompt_do_not_narrow_the_interval() -> None:
    once = estimates([(1, 1)] * 30 + [(1, 0)] * 20)[0]
    copied = estimates([(8, 8)] * 30 + [(8, 0)] * 20)[0]
    independent = estimates([(8, 5)] * 30 + [(8, 4)] * 20)[0]
    assert (copied.low, copied.high) == pytest.approx((once.low, once.high))
    assert independent.high - independent.low < 0.6 * (once.high - once.low)


@pytest.mark.parametrize(("prompts", "samples"), [(40, 1), (40, 8), (200, 4)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(prompts: int, samples: int) -> None:
    rng = np.random.default_rng(0)
    truth = {1: 0.5, 2: 1 - 1 / 3, 4: 1 - 1 / 5, 8: 1 - 1 / 9}  # of rates uniform in [0, 1]
    hits = dict.fromkeys((k for k in truth if k <= samples), 0)
    for _ in range(400):
        right = rng.binomial(samples, rng.uniform(size=prompts))
        for one in estimates([(samples, int(c)) for c in right]):
            hits[one.k] += one.low <= truth[one.k] <= one.high
    for k, count in hits.items():
        assert 0.9 <= count / 400 <= 0.99, k
