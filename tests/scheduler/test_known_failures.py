# SPDX-License-Identifier: Apache-2.0
"""Failures that other trainers had with asynchronous schedules, each as a story that ends well."""

from __future__ import annotations

import pytest

from rlrun.batching.fifo import Fifo
from rlrun.batching.freshest import Freshest
from rlrun.batching.in_order import InOrder
from rlrun.interfaces import Batching, ReadyGroup
from rlrun.scheduler import (
    Admit,
    Cancel,
    CancelReason,
    Fail,
    Finish,
    GroupFailed,
    OnAgeLimit,
    Train,
    Verdict,
    VersionPublished,
)
from tests.scheduler.scheduler_cases import Story


def run_to_the_end(run: Story) -> None:
    """Finishes the oldest running group, trains and publishes until the run ends."""
    for _ in range(1000):
        if run.scheduler.ended:
            return
        if run.batch is not None:
            run.train()
            if not run.scheduler.ended:
                run.apply(VersionPublished(run.scheduler.version + 1))
        else:
            run.finish(run.scheduler.in_flight[0])
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("policy", [Fifo, InOrder, Freshest])
def test_b04_01_resume_with_a_full_batch_in_the_buffer_trains_every_step(
    policy: type[Batching],
) -> None:
    run = Story(policy(), max_age=1, max_steps=8)
    for _ in range(5):
        run.finish(*run.scheduler.in_flight[:2])
        run.train()
        # Step 6's whole batch is ready before version 5 is in use.
        if run.scheduler.version == 4:
            run.finish(*run.scheduler.in_flight)
        run.apply(VersionPublished(run.scheduler.version + 1))
    assert len(run.scheduler.held) == 2
    before = len(run.batches)
    run.restart(max_age=1, max_steps=8)
    run_to_the_end(run)
    assert len(run.batches) - before == 3  # steps 6, 7 and 8
    assert run.scheduler.outcomes()["trained"] == 16


def test_b04_03_dead_workers_end_the_run_at_the_third_failure() -> None:
    run = Story(max_generation_failures=2, max_attempts=5)
    assert run.apply(GroupFailed(0, 0, "CUDA error: device lost", 0)) == (Admit(0, 1),)
    assert run.apply(GroupFailed(1, 0, "CUDA error: device lost", 0)) == (Admit(1, 1),)
    (fail,) = run.apply(GroupFailed(0, 1, "CUDA error: device lost", 0))
    assert isinstance(fail, Fail)
    assert fail.error == "CUDA error: device lost"
    assert run.apply(GroupFailed(1, 1, "CUDA error: device lost", 0)) == ()


def test_b04_05_stuck_rollout_is_retried_then_given_up_and_the_step_completes() -> None:
    run = Story(prompts_per_step=4, max_attempts=2)
    run.finish(0, 1, 2)
    assert run.apply(GroupFailed(3, 0, "no answer within 2 s", 0)) == (Admit(3, 1),)
    assert run.apply(GroupFailed(3, 1, "no answer within 2 s", 0)) == (Admit(4, 0),)
    assert run.finish(4) == (Train(1, (0, 1, 2, 4), (0, 0, 0, 0)),)
    assert run.scheduler.outcomes()["failed"] == 1


def test_b04_07_lag_of_exactly_the_bound_trains_and_one_more_never() -> None:
    def two_updates_later() -> Story:
        run = Story(max_age=2, in_flight_batches=2, on_age_limit=OnAgeLimit.EXPIRE)
        for first in (1, 3):
            run.finish(first, first + 1)
            run.step()
        assert 0 in run.scheduler.in_flight
        return run

    trained = two_updates_later()
    trained.finish(0)
    trained.finish(5)
    assert trained.batch is not None
    assert trained.batch.step == 3
    assert trained.batch.age_max == 2
    late = two_updates_later()
    assert Cancel(0, 0, CancelReason.EXPIRED) in late.finish(5, 6)


def test_b04_09_run_ends_without_waiting_for_the_last_broadcast() -> None:
    run = Story(max_age=1, max_steps=3)
    while run.scheduler.version < 2:
        run.finish(*run.scheduler.in_flight)
        run.step()
    run.finish(*run.scheduler.in_flight)
    assert run.train()[-1] == Finish("max_steps")
    assert len(run.batches) == 3
    assert run.scheduler.in_flight == ()


def test_b04_11_filtered_result_does_not_stall_the_step() -> None:
    run = Story(prompts_per_step=4)
    run.finish(0, 1, 2)
    assert run.finish(3, verdict=Verdict.FILTERED) == (Admit(4, 0),)
    assert run.finish(4)[0] == Train(1, (0, 1, 2, 4), (0, 0, 0, 0))
    at_the_end = Story(prompts_per_step=4, total_positions=4)
    at_the_end.finish(0, 1, 2)
    train = Train(1, (0, 1, 2), (0, 0, 0))
    assert at_the_end.finish(3, verdict=Verdict.FILTERED) == (train,)


def test_b04_13_window_of_ages_is_inclusive_and_ranked_by_the_policy() -> None:
    versions = [8, 10, 9, 8]
    ready = [ReadyGroup(n, version, version, n) for n, version in enumerate(versions)]
    assert [group.oldest_version for group in Freshest().rank(ready)[:2]] == [10, 9]
    assert [group.oldest_version for group in Fifo().rank(ready)[:2]] == [8, 8]
    # The one of version 7 is past a bound of 2 at version 10 and is taken out.
    run = Story(max_age=6, in_flight_batches=4)
    state = run.scheduler.state()
    state["at"] |= {"trained": 10, "version": 10, "finish_order": 5}
    state["pool"] = {
        "running": [],
        "ready": [[n, 0, v, v, n, None, 10] for n, v in enumerate([7, 8, 10, 9, 8])],
    }
    state["frontier"]["next_position"] = 8
    found = run.restart(state, max_age=2, in_flight_batches=2)
    assert found[0] == Cancel(0, 0, CancelReason.EXPIRED)
    assert found[1] == Train(11, (1, 4), (8, 8))


def test_b04_15_no_step_follows_weights_that_were_not_published() -> None:
    run = Story(max_age=2, in_flight_batches=2)
    run.finish(0, 1)
    run.train()
    assert run.finish(*run.scheduler.in_flight) == ()
    assert run.scheduler.in_flight == ()
    assert run.batch is None


def test_b04_17_failing_group_is_dropped_whole_and_counted_once() -> None:
    run = Story(max_attempts=1)
    assert run.apply(GroupFailed(0, 0, "rollout 3 of 4: HTTP 500", 30)) == (Admit(2, 0),)
    assert run.scheduler.counters()["rollout/failed_groups"] == 1
    assert run.scheduler.outcomes()["failed"] == 1
    assert run.finish(1, 2) == (Train(1, (1, 2), (0, 0)),)


def test_b05_16_resume_after_two_of_three_steps_trains_one_more() -> None:
    run = Story(max_steps=3)
    for _ in range(2):
        run.finish(*run.scheduler.in_flight)
        run.step()
    run.restart(max_steps=3)
    run_to_the_end(run)
    assert run.batches == [(0, 1), (2, 3), (4, 5)]


def test_b05_18_step_limit_ends_the_run_and_not_only_the_epoch() -> None:
    run = Story(max_steps=3, rows_per_epoch=10, total_positions=20)
    run_to_the_end(run)
    assert run.batches == [(0, 1), (2, 3), (4, 5)]
    assert run.scheduler.ended
