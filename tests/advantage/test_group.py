# SPDX-License-Identifier: Apache-2.0
import math
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.advantage.group import Baseline, GroupAdvantage, zero_variance
from rlrun.errors import TrainingError
from tests import reference_float64

REWARD = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 0.1, 0.3]), st.floats(-100, 100, allow_subnormal=False)
)
GROUP = st.lists(st.one_of(st.none(), REWARD), max_size=9)
VARIANTS = [
    (Baseline.MEAN, True),
    (Baseline.MEAN, False),
    (Baseline.LEAVE_ONE_OUT, True),
    (Baseline.LEAVE_ONE_OUT, False),
    (Baseline.NONE, False),
]
CENTRED = VARIANTS[:4]


def group_advantage(
    baseline: Baseline = Baseline.MEAN,
    normalize: bool = True,
    clip_low: float | None = None,
    clip_high: float | None = None,
) -> GroupAdvantage:
    return GroupAdvantage(
        baseline=baseline, normalize=normalize, clip_low=clip_low, clip_high=clip_high
    )


def one(
    rewards: Sequence[float | None],
    baseline: Baseline = Baseline.MEAN,
    normalize: bool = True,
    clip_low: float | None = None,
    clip_high: float | None = None,
) -> list[float]:
    return group_advantage(baseline, normalize, clip_low, clip_high)([rewards])[0]


@pytest.mark.parametrize(("baseline", "normalize"), VARIANTS)
@given(rewards=GROUP, low=st.sampled_from([None, -0.5]), high=st.sampled_from([None, 0.7]))
def test_equals_the_reference(
    baseline: Baseline,
    normalize: bool,
    rewards: list[float | None],
    low: float | None,
    high: float | None,
) -> None:
    expected = reference_float64.advantages(rewards, baseline.value, normalize, low, high)
    advantages = one(rewards, baseline, normalize, low, high)
    assert advantages == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("baseline", "normalize"), CENTRED)
@given(
    level=st.sampled_from([0.0, 1.0, -0.3, 100.0]),
    steps=st.lists(st.integers(0, 4), min_size=2, max_size=9),
    step=st.floats(1e-9, 1e-2),
    outlier=st.sampled_from([None, 0.0, 1.0]),
)
def test_rewards_that_nearly_agree_equal_the_reference(
    baseline: Baseline,
    normalize: bool,
    level: float,
    steps: list[int],
    step: float,
    outlier: float | None,
) -> None:
    rewards = [outlier, *(level + step * count for count in steps)]
    expected = reference_float64.advantages(rewards, baseline.value, normalize)
    assert one(rewards, baseline, normalize) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(rewards=GROUP)
def test_the_mean_baseline_has_a_bound_whatever_the_rewards(rewards: list[float | None]) -> None:
    n = sum(reward is not None for reward in rewards)
    largest = max(map(abs, one(rewards)), default=0.0)
    assert largest <= (n - 1) / math.sqrt(max(n, 1)) * (1 + 1e-9) or n < 2


@given(rewards=st.lists(st.sampled_from([-0.5, 1.0]), min_size=2, max_size=20))
def test_leave_one_out_has_a_bound_where_rewards_take_two_values(rewards: list[float]) -> None:
    largest = max(map(abs, one(rewards, Baseline.LEAVE_ONE_OUT)))
    assert largest <= math.sqrt(len(rewards)) * (1 + 1e-9)


def test_leave_one_out_has_only_the_clips_as_a_bound_on_a_continuous_scale() -> None:
    rewards = [0.0, 1.0, 1.0, 0.9998]
    assert one(rewards, Baseline.LEAVE_ONE_OUT)[0] == pytest.approx(-8585.3, rel=1e-4)
    assert min(one(rewards, Baseline.LEAVE_ONE_OUT, clip_low=-5)) == -5
    assert group_advantage(Baseline.LEAVE_ONE_OUT, clip_low=-5).unbounded
    assert not group_advantage(Baseline.LEAVE_ONE_OUT, clip_low=-5, clip_high=5).unbounded
    assert not group_advantage(Baseline.LEAVE_ONE_OUT, normalize=False).unbounded
    assert not group_advantage().unbounded


@pytest.mark.parametrize(("baseline", "normalize"), VARIANTS)
@given(rewards=GROUP, random=st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter_to_the_bit(
    baseline: Baseline, normalize: bool, rewards: list[float | None], random: Random
) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)
    advantages = one(rewards, baseline, normalize)
    shuffled = one([rewards[i] for i in order], baseline, normalize)
    assert shuffled == [advantages[i] for i in order]


@pytest.mark.parametrize(("baseline", "normalize"), VARIANTS)
@given(groups=st.lists(GROUP, max_size=5))
def test_groups_do_not_see_each_other(
    baseline: Baseline, normalize: bool, groups: list[list[float | None]]
) -> None:
    estimator = group_advantage(baseline, normalize)
    assert estimator(groups) == [estimator([group])[0] for group in groups]


@given(rewards=GROUP)
@pytest.mark.parametrize("normalize", [True, False])
def test_mean_baseline_sums_to_zero(normalize: bool, rewards: list[float | None]) -> None:
    advantages = one(rewards, Baseline.MEAN, normalize)
    assert abs(sum(advantages)) <= 1e-9 * max([1.0, *map(abs, advantages)])


@pytest.mark.parametrize(("baseline", "normalize"), VARIANTS)
@given(rewards=GROUP)
def test_a_missing_sample_leaves_no_trace(
    baseline: Baseline, normalize: bool, rewards: list[float | None]
) -> None:
    with_it = one([*rewards, None], baseline, normalize)
    assert with_it == [*one(rewards, baseline, normalize), 0.0]


@pytest.mark.parametrize(("baseline", "normalize"), CENTRED)
@pytest.mark.parametrize(
    "rewards",
    [
        [0.6] * 8,
        [float(np.float32(0.6))] * 7 + [float(np.nextafter(np.float32(0.6), np.float32(1)))],
        [0.1 + 0.2, 0.3, 0.3],
        [0.0] * 4,
        [-5.0] * 3,
        [1e50] * 3,
    ],
)
def test_constant_rewards_give_exactly_zero(
    baseline: Baseline, normalize: bool, rewards: list[float]
) -> None:
    assert one(rewards, baseline, normalize) == [0.0] * len(rewards)
    assert zero_variance(rewards)


def test_only_the_mean_is_not_divided_by_the_std() -> None:
    assert one([1, 0, 0, 1]) == pytest.approx([0.86602, -0.86602, -0.86602, 0.86602], abs=1e-5)


def test_statistics_are_over_the_valid_samples() -> None:
    assert one([1, None, 0, 1]) == pytest.approx([0.57735, 0, -1.15470, 0.57735], abs=1e-5)


def test_a_failed_rollout_is_not_a_zero_reward() -> None:
    assert one([1, 1, 1, None], Baseline.LEAVE_ONE_OUT, False) == [0.0] * 4
    as_zero = one([1, 1, 1, 0], Baseline.LEAVE_ONE_OUT, False)
    assert as_zero == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1])


def test_statistics_of_rows_do_not_mix_columns() -> None:
    advantages = group_advantage()([[1, 2, 3, None], [4, 6, None, None]])
    assert advantages[0] == pytest.approx([-1, 0, 1, 0], abs=1e-5)
    assert advantages[1] == pytest.approx([-0.70711, 0.70711, 0, 0], abs=1e-5)


def test_every_group_is_normalised() -> None:
    advantages = group_advantage()([[0, 1], [0, 10], [5, 3]])
    flat = [value for group in advantages for value in group]
    half = math.sqrt(0.5)
    assert flat == pytest.approx([-half, half, -half, half, half, -half], abs=1e-5)


@pytest.mark.parametrize(("baseline", "normalize"), CENTRED)
@pytest.mark.parametrize("rewards", [[3.0], [None, 3.0, None]])
def test_a_lone_sample_gets_zero(
    baseline: Baseline, normalize: bool, rewards: list[float | None]
) -> None:
    assert one(rewards, baseline, normalize) == [0.0] * len(rewards)


def test_nothing_valid_and_nothing_at_all() -> None:
    assert one([None, None]) == [0.0, 0.0]
    assert one([]) == []
    assert group_advantage()([]) == []


def test_two_samples_with_leave_one_out_are_normalised_by_the_std_of_both() -> None:
    advantages = one([0, 10], Baseline.LEAVE_ONE_OUT, True)
    assert advantages == pytest.approx([-math.sqrt(2), math.sqrt(2)], rel=1e-6)


def test_an_outlier_among_equal_others_is_normalised_by_the_std_of_the_group() -> None:
    advantages = one([1, 0, 0, 0], Baseline.LEAVE_ONE_OUT, True)
    assert advantages == pytest.approx([2, *[-1 / 3 / math.sqrt(1 / 3)] * 3], rel=1e-5)


def test_leave_one_out_scales_the_mean_baseline() -> None:
    rewards = [0.0, 1.0, 4.0, 2.0]
    ours = one(rewards, Baseline.LEAVE_ONE_OUT, False)
    assert ours == pytest.approx([value * 4 / 3 for value in one(rewards, Baseline.MEAN, False)])


def test_a_large_offset_does_not_cancel_the_std() -> None:
    plain, lifted = [0.0, 1.0, 1.0, 3.0], [1e5, 1e5 + 1, 1e5 + 1, 1e5 + 3]
    assert one(lifted) == pytest.approx(one(plain), rel=1e-9)


def test_clip_bounds_each_side_alone() -> None:
    rewards = [0.0, 0.0, 0.0, 10.0]
    assert max(one(rewards, clip_high=0.5)) == 0.5
    assert min(one(rewards, clip_high=0.5)) == min(one(rewards))
    assert one(rewards, clip_low=0.0)[0] == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_an_unusable_reward_is_an_error_that_names_it(bad: float) -> None:
    with pytest.raises(
        TrainingError, match=r"group 1, sample 2: the reward is .*(nan|inf|1e\+200)"
    ):
        group_advantage()([[0, 1], [1, 0, bad]])


def test_zero_variance_counts_what_is_there() -> None:
    assert zero_variance([1, 1, None])
    assert zero_variance([1, None])
    assert zero_variance([])
    assert not zero_variance([0, 1, None])
    assert not zero_variance([0, 1e-9])


def test_zero_variance_is_about_unshaped_rewards() -> None:
    assert zero_variance([1, 1, 1, 1])
    assert not zero_variance([1, 1, 0.9, 0.8])


def test_impossible_settings_are_refused() -> None:
    def keys(settings: GroupAdvantage) -> list[tuple[str, ...]]:
        return [problem[0] for problem in settings.problems()]

    for baseline, normalize in VARIANTS:
        assert keys(group_advantage(baseline, normalize)) == []
    assert keys(group_advantage(Baseline.NONE, True)) == [("baseline", "normalize")]
    assert keys(group_advantage(clip_low=0, clip_high=0)) == [("clip_low", "clip_high")]
    assert keys(group_advantage(clip_low=0, clip_high=1)) == []
