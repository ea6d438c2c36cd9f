# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.errors import TrainingError
from rlrun.interfaces import CorrectionInputs, OverlongShaping, RewardScaling
from rlrun.rewards import overlong_penalty, scale, sequence_error_mask


def scaling(enabled: bool = True, source: tuple[float, float] = (0, 1)) -> RewardScaling:
    low, high = source
    return RewardScaling(
        enabled=enabled, source_min=low, source_max=high, target_min=-1, target_max=3
    )


def shaping(
    enabled: bool = True, buffer: int = 20, penalty: float = 0.5, limit: int | None = 100
) -> OverlongShaping:
    return OverlongShaping(
        enabled=enabled, buffer_tokens=buffer, penalty=penalty, max_response_tokens=limit
    )


@pytest.mark.parametrize(
    ("reward", "scaled"), [(0, -1), (1, 3), (0.5, 1), (0.25, 0), (-7, -1), (2, 3)]
)
def test_scaling_is_linear_within_the_source_and_clamps_outside(
    reward: float, scaled: float
) -> None:
    assert scale(reward, scaling()) == scaled


def test_scaling_that_is_off_changes_nothing() -> None:
    assert scale(-7.5, scaling(enabled=False)) == -7.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("enabled", [False, True])
def test_a_reward_that_is_no_number_is_an_error(bad: float, enabled: bool) -> None:
    with pytest.raises(TrainingError, match="the reward is"):
        scale(bad, scaling(enabled))


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(0, 0), (79, 0), (80, 0), (85, -0.125), (90, -0.25), (100, -0.5), (101, -0.5), (500, -0.5)],
)
def test_the_penalty_grows_over_the_buffer(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, shaping(), max_new_tokens=7) == penalty


def test_the_limit_is_that_of_generation_unless_set() -> None:
    assert overlong_penalty(50, shaping(limit=None), max_new_tokens=50) == -0.5
    assert overlong_penalty(40, shaping(limit=None), max_new_tokens=50) == -0.25


def test_no_penalty_without_shaping() -> None:
    assert overlong_penalty(500, shaping(enabled=False), max_new_tokens=50) == 0.0


@given(
    reward=st.floats(-10, 10),
    fewer=st.integers(1, 200),
    more=st.integers(0, 200),
    buffer=st.integers(1, 150),
)
def test_being_longer_never_pays(reward: float, fewer: int, more: int, buffer: int) -> None:
    short = reward + overlong_penalty(fewer, shaping(buffer=buffer), 1)
    long = reward + overlong_penalty(fewer + more, shaping(buffer=buffer), 1)
    assert long <= short <= reward


@given(reward=st.floats(-10, 10), tokens=st.integers(0, 300))
def test_being_cut_never_improves_a_negative_reward(reward: float, tokens: int) -> None:
    assert scale(reward, scaling()) + overlong_penalty(tokens, shaping(), 1) <= scale(
        reward, scaling()
    )


def test_sequences_with_a_large_error_are_out() -> None:
    gaps = [[0.0, 0.1], [], [math.log(2)] * 2, [math.log(4), 0.0], [math.nan, 0.0], [-900.0]]
    flat = torch.tensor([gap for trajectory in gaps for gap in trajectory])
    inputs = CorrectionInputs(
        prev_logprobs=torch.full_like(flat, -1.0),
        generation_logprobs=flat - 1.0,
        trajectory=torch.tensor([i for i, part in enumerate(gaps) for _ in part]),
        num_trajectories=len(gaps),
    )
    assert sequence_error_mask(inputs, 2.1).tolist() == [False, False, False, True, True, True]
    assert sequence_error_mask(inputs, 1.9).tolist() == [False, False, True, True, True, True]


def test_an_empty_source_or_a_buffer_beyond_the_response_is_refused() -> None:
    assert list(scaling().problems()) == []
    assert [keys for keys, _, _ in scaling(source=(1, 1)).problems()] == [
        ("source_min", "source_max")
    ]
    assert list(shaping().problems()) == list(shaping(limit=None).problems()) == []
    assert list(shaping(enabled=False, buffer=200).problems()) == []
    assert [keys for keys, _, _ in shaping(buffer=101).problems()] == [
        ("buffer_tokens", "max_response_tokens")
    ]
