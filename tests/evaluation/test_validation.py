# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from rlrun.errors import EnvironmentDown
from rlrun.evaluation.pass_at_k import estimates
from rlrun.evaluation.report import count_right, report_of
from rlrun.evaluation.validation import Evaluation, validation_metrics, why_unscored
from rlrun.metrics.registry import is_declared
from rlrun.models.saved_policy import SavedPolicy
from rlrun.types import Failure, FailureKind, TrajectoryGroup
from tests.factories import config, group, prompt, trajectory


def test_accuracy_is_over_all_rows_exactly() -> None:
    groups = [group([float(i < 9)], i) for i in range(10)]
    assert validation_metrics(groups, 1)["validation/accuracy"] == 0.9


def test_a_failure_is_left_out_and_counted() -> None:
    groups = [group([1.0], i) for i in range(9)] + [group([None], 9)]
    metrics = validation_metrics(groups, 1)
    assert metrics["validation/accuracy"] == 1.0
    assert metrics["validation/failed_samples"] == 1.0


def test_a_reward_that_measures_nothing_is_left_out_and_counted() -> None:
    flagged = TrajectoryGroup(prompt(1), (trajectory(reward=0.0, flagged=True),))
    metrics = validation_metrics([group([1.0]), flagged], 1)
    assert metrics["validation/accuracy"] == 1.0
    assert metrics["validation/failed_samples"] == 1.0


def test_pass_at_k_is_over_the_samples_that_accuracy_is_over() -> None:
    samples = (trajectory(reward=1.0, flagged=True), trajectory(reward=None), trajectory(reward=0))
    one = TrajectoryGroup(prompt(0), samples)
    assert count_right(one) == (1, 0)
    accuracy = validation_metrics([one], 3)["validation/accuracy"]
    assert estimates([count_right(one)])[0].value == accuracy == 0.0


def test_when_all_fail_there_is_no_accuracy_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        metrics = validation_metrics([group([None]), group([None], 1)], 1)
    assert metrics == {"validation/failed_samples": 2.0}
    assert "no accuracy: not one of 2 samples could be scored: 2 failed" in caplog.text


def test_why_nothing_could_be_scored_tells_failures_from_flags() -> None:
    flagged = trajectory(reward=0.0, flagged=True)
    lost = trajectory(reward=None, failure=Failure(FailureKind.ENV_ERROR, "no luck"))
    none = "not one of {} could be scored: "
    by_flag = "flagged by the environment, their reward measures nothing"
    assert why_unscored([flagged]) == none.format("1 sample") + f"1 {by_flag}"
    assert why_unscored([lost, flagged, lost, flagged]) == (
        none.format("4 samples") + f"2 {by_flag}; 2 failed, the first: no luck"
    )


def test_an_evaluation_of_flagged_samples_alone_says_so() -> None:
    policy = SavedPolicy("gym-model", config(), None)
    flagged = TrajectoryGroup(prompt(1), (trajectory(reward=0.0, flagged=True),) * 3)
    evaluation = Evaluation(validation_metrics([flagged], 3), [flagged])
    with pytest.raises(EnvironmentDown, match=r"not one of 3 samples .* 3 flagged by") as error:
        report_of(policy, evaluation, 3)
    assert "unknown" not in str(error.value)


def test_pass_k_counts_prompts_with_one_right_sample() -> None:
    groups = [group([0.0, 1.0, 0.0]), group([0.0, 0.0, 0.0], 1)]
    metrics = validation_metrics(groups, 3)
    assert metrics["validation/pass_k"] == 0.5
    assert metrics["validation/accuracy"] == pytest.approx(1 / 6)


def test_a_prompt_without_a_scored_sample_is_not_counted_as_unsolved() -> None:
    groups = [group([0.0, 1.0]), group([None, None], 1), group([None, 0.0], 2)]
    assert validation_metrics(groups, 2)["validation/pass_k"] == 0.5


def test_each_part_of_the_reward_is_a_mean_over_the_samples_that_have_it() -> None:
    groups = [
        TrajectoryGroup(prompt(), (replace(trajectory(), rewards={"correct": 1.0, "form": 0.5}),)),
        group([0.0, None], 1),
    ]
    metrics = validation_metrics(groups, 1)
    assert metrics["validation/reward/correct"] == 0.5
    assert metrics["validation/reward/form"] == 0.5
    assert all(is_declared(name) for name in metrics)
