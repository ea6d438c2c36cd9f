# SPDX-License-Identifier: Apache-2.0
"""Facts about the scheduler, one story each."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from rlrun.batching.fifo import Fifo
from rlrun.batching.freshest import Freshest
from rlrun.batching.in_order import InOrder
from rlrun.errors import ConfigError
from rlrun.interfaces import Batching, ReadyGroup
from rlrun.scheduler import (
    Admit,
    Cancel,
    CancelReason,
    EnginesLost,
    Fail,
    Finish,
    GroupCancelled,
    GroupFailed,
    GroupFinished,
    Hold,
    OnAgeLimit,
    Outcome,
    Paused,
    Resumed,
    Scheduler,
    StepTrained,
    Stop,
    TokenCategory,
    TokensGenerated,
    Train,
    Verdict,
    VersionPublished,
    Waiting,
)
from tests.scheduler.scheduler_cases import Story, admitted, settings


def test_sync_run_admits_trains_and_publishes_in_turn() -> None:
    run = Story(max_steps=2)
    assert run.first == (Admit(0, 0), Admit(1, 0))
    assert run.finish(1) == ()
    assert run.waiting() is Waiting.GROUPS
    assert run.finish(0) == (Train(1, (0, 1), (0, 0)),)
    assert run.waiting() is Waiting.NOTHING
    assert run.train() == ()
    assert run.waiting() is Waiting.REFIT
    assert run.apply(VersionPublished(1)) == (Admit(2, 0), Admit(3, 0))
    assert run.finish(2, 3, oldest=1) == (Train(2, (2, 3), (1, 1)),)
    assert run.train() == (Finish("max_steps"),)
    assert run.waiting() is Waiting.END


@pytest.mark.parametrize("seed", range(20))
def test_age_zero_trains_the_same_batches_in_any_order_of_finishing(seed: int) -> None:
    rng = random.Random(seed)
    run = Story(prompts_per_step=4, max_steps=6, max_gen_batches=9)
    while not run.scheduler.ended:
        if run.batch is not None:
            run.step()
            continue
        position = rng.choice(run.scheduler.in_flight)
        # Every third prompt has no signal: what refills its place is fixed all the same.
        verdict = Verdict.NO_SIGNAL if position % 3 == 0 else Verdict.KEEP
        run.finish(position, verdict=verdict)
    signal = [position for position in range(100) if position % 3]
    assert run.batches == [tuple(signal[4 * n : 4 * n + 4]) for n in range(6)]


def test_in_flight_is_limited_by_batches_and_outstanding_by_age() -> None:
    run = Story(max_age=2, in_flight_batches=2)
    assert admitted(run.first) == [0, 1, 2, 3]
    assert admitted(run.finish(0)) == [4]
    # Two batches and the one that trains are out: nothing is admitted before the refit.
    assert admitted(run.finish(1)) == [5]
    assert run.batch == Train(1, (0, 1), (0, 0))
    assert admitted(run.finish(2, 3)) == []
    assert admitted(run.train()) == []
    assert admitted(run.apply(VersionPublished(1))) == [6, 7]


def test_dropped_group_is_refilled_by_the_next_prompt() -> None:
    run = Story()
    assert run.finish(0, verdict=Verdict.NO_SIGNAL) == (Admit(2, 0),)
    assert run.finish(1, verdict=Verdict.FILTERED) == (Admit(3, 0),)
    assert run.scheduler.outcomes() == {"trained": 0, "no_signal": 1, "failed": 0, "filtered": 1}
    tokens = run.scheduler.ledger()
    assert (tokens["zero_signal"], tokens["filtered"]) == (10, 10)


def test_failed_group_is_tried_again_and_then_given_up() -> None:
    run = Story(max_attempts=2)
    assert run.apply(GroupFailed(0, 0, "boom", 3)) == (Admit(0, 1),)
    assert run.apply(GroupFailed(0, 1, "boom", 4)) == (Admit(2, 0),)
    assert run.scheduler.outcomes()["failed"] == 1
    assert run.scheduler.counters()["rollout/failed_groups"] == 2
    assert run.scheduler.ledger()["errored"] == 7


def test_success_resets_the_count_of_failures() -> None:
    run = Story(max_generation_failures=1, max_attempts=9)
    for attempt in range(5):
        run.apply(GroupFailed(0, attempt, "boom", 0))
        position = run.scheduler.in_flight[0]
        run.finish(position, verdict=Verdict.NO_SIGNAL)
        assert not run.scheduler.ended


def test_failure_of_the_run_names_the_first_error_in_a_row() -> None:
    run = Story(max_generation_failures=1, max_attempts=9)
    run.apply(GroupFailed(0, 0, "an old one", 0))
    run.finish(1)
    run.apply(GroupFailed(0, 1, "no space left on device", 0))
    (fail,) = run.apply(GroupFailed(0, 2, "connection refused", 0))
    assert fail == Fail(
        "2 generation failures since the last success (max_generation_failures=1)",
        "no space left on device",
    )


def test_lost_engine_counts_once_and_is_not_held_against_its_prompts() -> None:
    run = Story(max_age=2, in_flight_batches=2, max_generation_failures=1, max_attempts=1)
    run.apply(TokensGenerated(1, 0, 5))
    found = run.apply(EnginesLost((0, 1), "engine 1 died"))
    assert found == (Admit(0, 1), Admit(1, 1))
    assert run.scheduler.ledger()["errored"] == 5
    assert run.scheduler.outcomes()["failed"] == 0


def test_hold_waits_for_the_group_at_its_bound() -> None:
    run = Story(max_age=1)
    run.finish(1)
    run.finish(2)
    run.step()
    # Version 1: group 0 is of version 0, so step 2 is its last chance.
    run.finish(3, 4)
    assert run.waiting() is Waiting.AGE_LIMIT
    assert run.batch is None
    found = run.finish(0)
    assert [d for d in found if isinstance(d, Train)] == [Train(2, (0, 3), (0, 0))]


def test_hold_is_said_once_for_a_step_with_the_groups_it_waits_for() -> None:
    run = Story(max_age=2, in_flight_batches=2)
    run.finish(1, 2)
    run.step()
    run.finish(3, 4)
    run.step()
    found = run.finish(5, 6)
    assert [d for d in found if isinstance(d, Hold)] == [Hold(3, (0,))]
    assert not any(isinstance(d, Hold) for d in run.finish(7, 8))


def overdue_zero(limit: OnAgeLimit, **changes: Any) -> Story:
    """Group 0 generates at its bound (age 1) and two others are ready."""
    run = Story(max_age=1, on_age_limit=limit, **changes)
    run.finish(1, 2)
    run.step()
    run.finish(3)
    return run


def test_expire_cancels_the_group_and_redoes_its_prompt_first() -> None:
    run = overdue_zero(OnAgeLimit.EXPIRE)
    run.apply(TokensGenerated(0, 0, 7))
    found = run.finish(4)
    assert found[0] == Cancel(0, 0, CancelReason.EXPIRED)
    assert found[1] == Train(2, (3, 4), (0, 1))
    assert found[2] == Admit(0, 1)
    assert run.scheduler.counters()["buffer/expired_groups"] == 1
    assert run.scheduler.ledger()["cancelled"] == 7


def test_prompt_that_expired_often_enough_is_held_for() -> None:
    run = overdue_zero(OnAgeLimit.EXPIRE, max_expiries=0)
    assert Hold(2, (0,)) in run.finish(4)
    assert run.finish(0)[0] == Train(2, (0, 3), (0, 0))


def test_mask_goes_on_and_says_which_tokens_get_no_loss() -> None:
    run = overdue_zero(OnAgeLimit.MASK)
    assert run.finish(4)[0] == Train(2, (3, 4), (0, 1))
    run.step()
    run.finish(5)
    found = run.finish(0)
    train = next(d for d in found if isinstance(d, Train))
    assert train == Train(3, (0, 5), (0, 1), mask_before=1)
    assert train.ages == (1, 1)
    assert (train.age_mean, train.age_max) == (1.0, 1)


def test_freshest_takes_the_oldest_when_its_order_is_not_feasible() -> None:
    run = Story(Freshest(), max_age=1)
    run.finish(0, 1)
    run.finish(2)
    run.step()
    run.finish(3)
    # Group 2 and 3 are of version 0 and would be two steps old at step 3.
    assert run.batch == Train(2, (2, 3), (0, 0))
    young = Story(Freshest(), max_age=3, in_flight_batches=2)
    young.finish(0, 1)
    young.finish(2)
    young.step()
    young.finish(6, 7)
    assert young.batches[1] == (2, 6)


def test_in_order_trains_exactly_the_groups_of_the_target() -> None:
    run = Story(InOrder(), max_age=2, in_flight_batches=2)
    assert run.first == (Admit(0, 0, 1), Admit(1, 0, 1), Admit(2, 0, 2), Admit(3, 0, 2))
    assert admitted(run.finish(2, 3)) == [4, 5]
    assert run.batch is None
    run.finish(0)
    assert run.finish(1)[0] == Train(1, (0, 1), (0, 0))


def test_in_order_gives_an_open_place_to_the_next_prompt() -> None:
    run = Story(InOrder(), max_age=2, in_flight_batches=2)
    assert run.finish(0, verdict=Verdict.NO_SIGNAL) == (Admit(4, 0, 1),)
    assert run.apply(GroupFailed(1, 0, "boom", 0)) == (Admit(1, 1, 1),)


def test_in_order_fills_a_hole_at_the_end_of_data_from_the_next_step() -> None:
    run = Story(InOrder(), max_age=2, in_flight_batches=2, total_positions=4)
    run.finish(2, 3)
    run.finish(0, verdict=Verdict.NO_SIGNAL)
    assert run.finish(1) == (Train(1, (1, 2), (0, 0)),)
    assert run.step() == (Train(2, (3,), (0,)),)
    assert run.step() == (Finish("data_end"),)


def test_in_order_stops_after_a_step_whose_hole_no_admission_can_fill() -> None:
    run = Story(InOrder(), max_age=2, in_flight_batches=2)
    run.finish(2, 3)
    run.apply(Stop("SIGTERM", finish_step=True))
    run.finish(0, verdict=Verdict.NO_SIGNAL)
    assert Train(1, (1, 2), (0, 0)) in run.finish(1)
    assert run.train()[-1] == Finish("SIGTERM")


def test_last_batch_is_short_and_never_empty() -> None:
    run = Story(total_positions=3)
    run.finish(0, 1)
    assert run.step() == (Admit(2, 0),)
    assert run.finish(2) == (Train(2, (2,), (1,)),)
    assert run.train() == (Finish("data_end"),)
    empty = Story(total_positions=2)
    assert empty.finish(0, 1, verdict=Verdict.NO_SIGNAL) == (Finish("data_end"),)
    assert Story(total_positions=0).first == (Finish("data_end"),)


def test_batches_run_across_epoch_borders() -> None:
    run = Story(rows_per_epoch=3, total_positions=6)
    for _ in range(3):
        run.finish(*run.scheduler.in_flight)
        run.step()
    assert run.batches == [(0, 1), (2, 3), (4, 5)]
    assert run.scheduler.state()["frontier"]["closed_epochs"]["epochs"] == 2


def test_nothing_is_generated_that_no_step_is_left_for() -> None:
    run = Story(max_age=4, in_flight_batches=4, max_steps=2)
    assert admitted(run.first) == [0, 1, 2, 3]
    assert admitted(run.finish(0, 1)) == []
    assert admitted(run.finish(2, verdict=Verdict.NO_SIGNAL)) == [4]


def test_pause_admits_nothing_and_begins_no_step() -> None:
    run = Story(max_age=2, in_flight_batches=2)
    run.apply(Paused())
    assert run.finish(0, 1, 2) == ()
    assert run.waiting() is Waiting.PAUSE
    found = run.apply(Resumed())
    assert found == (Train(1, (0, 1), (0, 0)), Admit(4, 0), Admit(5, 0))


def test_stop_ends_after_the_step_in_training() -> None:
    run = Story(max_age=2, in_flight_batches=2)
    run.finish(0, 1)
    assert run.apply(Stop("time_limit")) == ()
    found = run.train()
    assert found[-1] == Finish("time_limit")
    assert [d for d in found if isinstance(d, Cancel)] == [
        Cancel(position, 0, CancelReason.FINISHED) for position in (2, 3, 4, 5)
    ]
    assert run.apply(VersionPublished(1)) == ()


def test_stop_between_steps_ends_at_once_unless_the_step_is_wanted() -> None:
    run = Story()
    assert run.apply(Stop("SIGTERM"))[-1] == Finish("SIGTERM")
    patient = Story()
    assert patient.apply(Stop("SIGTERM", finish_step=True)) == ()
    patient.finish(0, 1)
    assert patient.train() == (Finish("SIGTERM"),)


def test_resume_generates_again_what_was_in_flight_under_the_same_attempt() -> None:
    run = Story(max_age=1)
    run.apply(GroupFailed(0, 0, "boom", 0))
    run.apply(TokensGenerated(0, 1, 6))
    run.finish(1)
    state = json.loads(json.dumps(run.scheduler.state()))
    assert run.restart(state, max_age=1) == (Admit(0, 1), Admit(2, 0))
    assert run.scheduler.ledger()["lost"] == 6
    assert run.scheduler.held == (1,)


def test_resume_trains_again_a_batch_whose_training_did_not_end() -> None:
    run = Story(max_age=1)
    run.finish(0, 1)
    state = run.scheduler.state()
    assert run.restart(state, max_age=1)[0] == Train(1, (0, 1), (0, 0))


def test_resume_between_training_and_refit_frees_the_slots() -> None:
    run = Story()
    run.finish(0, 1)
    run.train()
    assert run.restart() == (Admit(2, 0), Admit(3, 0))
    assert run.scheduler.version == 1


def test_resume_with_more_steps_goes_on_after_the_end() -> None:
    run = Story(max_age=1, max_steps=1)
    assert admitted(run.first) == [0, 1]
    run.finish(0, 1)
    assert run.train() == (Finish("max_steps"),)
    assert run.restart(max_age=1, max_steps=1) == (Finish("max_steps"),)
    assert admitted(run.restart(max_age=1, max_steps=2)) == [2, 3]


def test_lowered_bound_on_resume_expires_ready_groups_that_are_too_old() -> None:
    run = Story(max_age=3, in_flight_batches=2)
    run.finish(1, 2)
    run.step()
    run.finish(3, 4)
    run.step()
    run.finish(0)
    run.apply(Paused())
    run.finish(5, 6)
    found = run.restart(max_age=1)
    assert Cancel(0, 0, CancelReason.EXPIRED) in found
    assert run.scheduler.ledger()["stale"] == 20
    assert Admit(0, 1) in found


def test_late_report_is_harmless_and_counts_only_what_is_new() -> None:
    run = overdue_zero(OnAgeLimit.EXPIRE)
    run.apply(TokensGenerated(0, 0, 7))
    run.finish(4)
    before = run.scheduler.state()["pool"]
    assert run.apply(GroupFinished(0, 0, 0, 12)) == ()
    assert run.scheduler.state()["pool"] == before
    assert run.scheduler.ledger()["cancelled"] == 12
    run.apply(GroupFailed(0, 1, "time-out", 5))
    run.apply(GroupCancelled(0, 1, 9))
    tokens = run.scheduler.ledger()
    assert (tokens["errored"], tokens["cancelled"]) == (5, 16)


def test_dynamic_sampling_fails_above_its_bound_and_not_at_it() -> None:
    run = Story(max_gen_batches=2)
    assert run.finish(0, 1, 2, verdict=Verdict.NO_SIGNAL)[-1] == Admit(4, 0)
    assert not any(isinstance(d, Fail) for d in run.finish(3))
    (fail,) = run.finish(4, verdict=Verdict.NO_SIGNAL)
    assert isinstance(fail, Fail)
    assert "step 1: 5 groups" in fail.reason
    assert "dynamic_sampling_max_gen_batches=2" in fail.reason


def test_bound_on_dynamic_sampling_counts_no_groups_of_other_targets() -> None:
    """While step 1 waits for its slowest group, three quarters of those for later ones drop."""
    run = Story(InOrder(), max_age=8, in_flight_batches=8, max_gen_batches=4)
    run.finish(1)
    for position in range(2, 60):
        if position in run.scheduler.in_flight:
            run.finish(position, verdict=Verdict.KEEP if position % 4 == 0 else Verdict.NO_SIGNAL)
    assert not run.scheduler.ended and run.batch is None
    assert Train(1, (0, 1), (0, 0)) in run.finish(0)
    # Its own are counted, when it is the next.
    own = Story(InOrder(), max_age=8, in_flight_batches=8, max_gen_batches=4)
    while not own.scheduler.ended:
        own.finish(min(own.scheduler.in_flight), verdict=Verdict.NO_SIGNAL)
    assert own.scheduler.outcomes()["no_signal"] > 8


def test_bound_on_dynamic_sampling_starts_anew_with_every_step() -> None:
    run = Story(max_gen_batches=2)
    for step in range(4):
        first = 4 * step
        run.finish(first, first + 1, verdict=Verdict.NO_SIGNAL)
        run.finish(first + 2, first + 3)
        run.step()
        assert not run.scheduler.ended


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (GroupFinished(7, 0, 0, 1), "never admitted"),
        (GroupFinished(0, 0, 0, 1), "reported twice"),
        (GroupFinished(1, 0, 1, 1), "oldest version 1"),
        (StepTrained(1, {0: Outcome.TRAINED}, {}), "not in training"),
        (VersionPublished(1), "after 0 steps"),
        (Resumed(), "without a pause"),
    ],
)
def test_event_that_contradicts_the_past_is_refused_and_changes_nothing(
    event: GroupFinished, message: str
) -> None:
    run = Story(max_age=1)
    run.finish(0)
    before = run.scheduler.state()
    with pytest.raises(ValueError, match=message):
        run.scheduler.apply(event)
    assert run.scheduler.state() == before


@pytest.mark.parametrize(
    ("outcomes", "tokens", "message"),
    [
        ({0: Outcome.TRAINED}, {TokenCategory.TRAINED: 20}, "do not match"),
        ({0: Outcome.TRAINED, 1: Outcome.FAILED}, {TokenCategory.TRAINED: 20}, "have failed"),
        ({0: Outcome.TRAINED, 1: Outcome.TRAINED}, {TokenCategory.TRAINED: 19}, "add up to 20"),
        ({0: Outcome.TRAINED, 1: Outcome.TRAINED}, {TokenCategory.LOST: 20}, "illegal"),
    ],
)
def test_step_must_account_for_its_whole_batch(
    outcomes: dict[int, Outcome], tokens: dict[TokenCategory, int], message: str
) -> None:
    run = Story()
    run.finish(0, 1)
    with pytest.raises(ValueError, match=message):
        run.scheduler.apply(StepTrained(1, outcomes, tokens))


def test_batching_policy_that_does_not_rank_is_refused_by_name() -> None:
    class Lossy(Fifo):
        def rank(self, ready: list[ReadyGroup]) -> list[ReadyGroup]:  # type: ignore[override]
            return [ready[0]] * len(ready)

    policy: Batching = Lossy()
    run = Story(policy)
    with pytest.raises(ConfigError, match="Lossy.*2 groups"):
        run.finish(0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts_per_step": 0}, "prompts_per_step=0 is below 1"),
        ({"max_age": -1}, "max_age=-1"),
        ({"max_age": 2, "in_flight_batches": 3}, "in_flight_batches=3 is above"),
        ({"in_flight_batches": 2}, "in_flight_batches=2 is above"),
    ],
)
def test_settings_without_a_rule_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**changes)


def test_state_of_another_format_is_refused() -> None:
    run = Story()
    with pytest.raises(ValueError, match="format 99"):
        Scheduler.restore(run.settings, Fifo(), {**run.scheduler.state(), "format": 99})


def test_state_stays_small_over_a_long_run() -> None:
    run = Story(prompts_per_step=4, max_age=2, in_flight_batches=2, rows_per_epoch=7)
    sizes = set()
    for _ in range(300):
        while run.batch is None:
            run.finish(run.scheduler.in_flight[0])
        run.step()
        sizes.add(len(json.dumps(run.scheduler.state())))
    assert max(sizes) < 2500
