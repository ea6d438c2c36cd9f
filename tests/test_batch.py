# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.batch import (
    Batch,
    Masked,
    collect_samples,
    lacks_signal,
    mask_where,
    with_advantages,
    without_stale,
)
from rlrun.types import Failure, FailureKind, StopReason, TrajectoryGroup, VersionSpan
from tests.factories import config, group, prompt, trajectory

CONFIG = config()


def test_a_failed_sample_is_masked_and_moves_nobody() -> None:
    samples = collect_samples([group([1.0, 1.0, 1.0, None])], CONFIG.grpo, 28)
    done = with_advantages(samples, CONFIG.advantage)
    assert [s.masked for s in done] == [None, None, None, Masked.FAILED]
    assert [s.advantage for s in done] == [0.0] * 4


def test_a_flagged_sample_is_masked_and_out_of_the_baseline() -> None:
    flags = (False, False, True)
    members = [
        trajectory(reward=reward, sample_index=index, flagged=flag)
        for index, (reward, flag) in enumerate(zip((1.0, 0.0, 9.0), flags, strict=True))
    ]
    samples = collect_samples([TrajectoryGroup(prompt(), tuple(members))], CONFIG.grpo, 28)
    done = with_advantages(samples, CONFIG.advantage)
    assert [s.masked for s in done] == [None, None, Masked.FLAGGED]
    assert done[0].advantage == pytest.approx(-done[1].advantage) and done[2].advantage == 0.0


def test_two_groups_of_equal_prompts_stay_two_groups() -> None:
    samples = collect_samples([group([1.0, 1.0], 0), group([0.0, 0.0], 1)], CONFIG.grpo, 28)
    assert {s.advantage for s in with_advantages(samples, CONFIG.advantage)} == {0.0}


def test_overlong_filtering_masks_truncated_samples_and_keeps_them_out_of_the_baseline() -> None:
    grpo = config("grpo.overlong_filtering=true").grpo
    members = (
        trajectory(reward=1.0),
        trajectory(reward=0.0, sample_index=1),
        trajectory(reward=0.0, sample_index=2, stop_reason=StopReason.LENGTH),
    )
    samples = collect_samples([TrajectoryGroup(prompt(), members)], grpo, 28)
    done = with_advantages(samples, CONFIG.advantage)
    assert done[2].masked is Masked.OVERLONG
    assert done[0].advantage == pytest.approx(-done[1].advantage)


def test_a_filtered_sample_gives_its_group_no_signal() -> None:
    """Its siblings are equal: kept for the batch, the group would have no gradient."""
    filtering = config("grpo.overlong_filtering=true").grpo
    members = (
        trajectory(reward=1.0),
        trajectory(reward=1.0, sample_index=1),
        trajectory(reward=0.0, sample_index=2, stop_reason=StopReason.LENGTH),
    )
    cut = TrajectoryGroup(prompt(), members)
    assert lacks_signal(cut, filtering) and not lacks_signal(cut, CONFIG.grpo)
    out = (
        trajectory(reward=0.0, sample_index=2, flagged=True),
        trajectory(reward=None, sample_index=2),
        trajectory((), reward=0.0, sample_index=2),
    )
    for one in out:
        assert lacks_signal(TrajectoryGroup(prompt(), (*members[:2], one)), CONFIG.grpo)


def test_signal_is_in_the_rewards_before_shaping() -> None:
    shaping = config(
        "grpo.overlong_shaping.enabled=true",
        "grpo.overlong_shaping.max_response_tokens=6",
        "grpo.overlong_shaping.buffer_tokens=3",
    ).grpo
    members = (trajectory(reward=1.0), trajectory((8,) * 5, reward=1.0, sample_index=1))
    one = TrajectoryGroup(prompt(), members)
    assert len({s.reward for s in collect_samples([one], shaping, 28)}) == 2
    assert lacks_signal(one, shaping)


@given(
    rewards=st.lists(st.sampled_from([0.0, 0.3, 1.0, None]), min_size=1, max_size=6),
    cut=st.lists(st.booleans(), min_size=6, max_size=6),
    flagged=st.lists(st.booleans(), min_size=6, max_size=6),
    filtering=st.booleans(),
)
def test_a_group_has_signal_exactly_where_an_advantage_is_not_zero(
    rewards: list[float | None], cut: list[bool], flagged: list[bool], filtering: bool
) -> None:
    grpo = replace(CONFIG.grpo, overlong_filtering=filtering)
    members = tuple(
        trajectory(
            reward=reward,
            sample_index=i,
            flagged=flagged[i],
            stop_reason=StopReason.LENGTH if cut[i] else StopReason.STOP,
        )
        for i, reward in enumerate(rewards)
    )
    one = TrajectoryGroup(prompt(), members)
    done = with_advantages(collect_samples([one], grpo, 28), CONFIG.advantage)
    assert lacks_signal(one, grpo) != any(s.has_advantage for s in done)


def test_a_sample_without_tokens_is_masked() -> None:
    empty = TrajectoryGroup(prompt(), (trajectory((), reward=0.0),))
    assert collect_samples([empty], CONFIG.grpo, 28)[0].masked is Masked.EMPTY


def test_scaling_and_the_overlong_penalty_shape_the_reward_and_not_the_record() -> None:
    grpo = config(
        "grpo.reward_scaling={enabled: true, target_min: -1.0}",
        "grpo.overlong_shaping={enabled: true, buffer_tokens: 4, max_response_tokens: 6}",
    ).grpo
    one = TrajectoryGroup(prompt(), (trajectory((8,) * 4, reward=1.0),))
    (sample,) = collect_samples([one], grpo, 28)
    assert sample.reward == pytest.approx(1.0 - 0.5)
    assert sample.trajectory.reward == 1.0


def test_a_mask_that_is_set_stays() -> None:
    samples = collect_samples([group([None, 1.0])], CONFIG.grpo, 28)
    masked = mask_where(samples, [True, True], Masked.LOGPROB_ERROR)
    assert [s.masked for s in masked] == [Masked.FAILED, Masked.LOGPROB_ERROR]


@given(
    rewards=st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=2), max_size=5),
    seed=st.integers(0, 5),
)
def test_the_order_of_samples_changes_no_advantage(
    rewards: list[list[float | None]], seed: int
) -> None:
    groups = [group(values, position) for position, values in enumerate(rewards)]
    samples = collect_samples(groups, CONFIG.grpo, 28)
    order = np.random.default_rng(seed).permutation(len(samples))
    plain = with_advantages(samples, CONFIG.advantage)
    shuffled = with_advantages([samples[i] for i in order], CONFIG.advantage)
    assert [plain[i].advantage for i in order] == [s.advantage for s in shuffled]


def test_minibatches_keep_masked_samples_in_place() -> None:
    samples = collect_samples([group([1.0, None, 0.0, 1.0, 0.0])], CONFIG.grpo, 28)
    batch = Batch(1, (), tuple(samples))
    assert [len(part) for part in batch.minibatches(2)] == [2, 2, 1]
    assert [len(part) for part in batch.minibatches(None)] == [5]
    assert [s for part in batch.minibatches(2) for s in part] == list(samples)


def test_a_failure_is_named() -> None:
    failed = trajectory(reward=None, failure=Failure(FailureKind.ENV_DOWN, "gone"))
    assert (
        collect_samples([TrajectoryGroup(prompt(), (failed,))], CONFIG.grpo, 28)[0].reward is None
    )


# --- on_age_limit=mask ----------------------------------------------------------------------------

SPANS = (VersionSpan(2, 3, 5), VersionSpan(3, 5, 6), VersionSpan(5, 6, 9))


def aged(**fields: object) -> TrajectoryGroup:
    """A group whose first sample was sampled by three versions, the second by the last of them."""
    old = trajectory((8,) * 6, logprobs=[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], reward=1.0)
    old = replace(old, weight_versions=SPANS)
    new = trajectory((8, 9), reward=0.0, sample_index=1, version=5)
    return TrajectoryGroup(prompt(), (replace(old, **fields), new))


def test_tokens_that_are_too_old_leave_the_loss_and_the_reward_stays_in_the_baseline() -> None:
    first, second = with_advantages(
        collect_samples([aged()], CONFIG.grpo, 28, mask_before=3), CONFIG.advantage
    )
    assert first.trajectory.loss_mask == (False,) * 5 + (True,) * 4
    assert first.generation_logprobs.tolist() == [-3.0, -4.0, -5.0, -6.0]
    assert first.trajectory.weight_versions == SPANS[1:]
    assert (first.stale_tokens, second.stale_tokens) == (2, 0)
    assert first.masked is None
    assert first.advantage == pytest.approx(-second.advantage) and first.advantage > 0


def test_a_sample_without_a_fresh_token_is_out_of_the_baseline() -> None:
    gone = aged(weight_versions=(VersionSpan(2, 3, 9),))
    first, second = with_advantages(
        collect_samples([gone], CONFIG.grpo, 28, mask_before=3), CONFIG.advantage
    )
    assert first.masked is Masked.STALE
    assert (first.advantage, second.advantage) == (0.0, 0.0)


@given(st.integers(0, 8))
def test_every_sampled_token_is_fresh_or_stale_and_none_fresh_is_too_old(bound: int) -> None:
    before = aged().trajectories[0]
    after = without_stale(before, bound)
    kept = [i for i, trained in enumerate(after.loss_mask) if trained]
    versions = {i: s.version for s in SPANS for i in range(s.start, s.end)}
    assert kept == [i for i, version in versions.items() if version >= bound]
    assert without_stale(before, None) is before


def test_the_penalty_for_length_counts_what_was_sampled_not_what_is_fresh() -> None:
    grpo = config(
        "grpo.overlong_shaping.enabled=true",
        "grpo.overlong_shaping.max_response_tokens=6",
        "grpo.overlong_shaping.buffer_tokens=3",
    ).grpo
    masked = collect_samples([aged()], grpo, 28, mask_before=5)
    assert masked[0].reward == collect_samples([aged()], grpo, 28)[0].reward == 0.0
