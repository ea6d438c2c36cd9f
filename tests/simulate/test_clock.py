# SPDX-License-Identifier: Apache-2.0
"""The simulated schedules: cases counted by hand, formulas, and what holds for every plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.scheduler import OnAgeLimit
from rlrun.simulate.clock import POLICIES, SYNCHRONOUS, Plan, simulate
from rlrun.simulate.grid import run_synchronous
from rlrun.simulate.measure import Result
from rlrun.simulate.workload import Costs, Lengths, LogNormalLengths, Workload


@dataclass(frozen=True)
class Listed:
    """One answer per prompt, of the listed lengths and then of one token."""

    lengths: tuple[int, ...]
    samples: int = 1

    def draw(self, position: int, attempt: int) -> tuple[int, ...]:
        return (self.lengths[position],) if position < len(self.lengths) else (1,)


def costs(**changes: Any) -> Costs:
    """A token a second whatever the load, a second of training per step, nothing else."""
    values: dict[str, Any] = {
        "sequence_s": 1.0,
        "saturated_s": 0.0,
        "max_sequences": None,
        "train_step_s": 1.0,
        "train_token_s": 0.0,
        "refit_s": 0.0,
        "validation_s": 0.0,
        "validation_period": None,
    }
    return Costs(**{**values, **changes})


def log_normal(**changes: Any) -> LogNormalLengths:
    values: dict[str, Any] = {
        "mean": 100.0,
        "log_sd": 0.5,
        "cap": None,
        "samples": 1,
        "prompt_correlation": 0.5,
        "seed": 0,
    }
    return LogNormalLengths(**{**values, **changes})


def workload(
    lengths: Lengths, prompts: int = 2, gpus: int | None = None, **changes: Any
) -> Workload:
    return Workload(
        prompts_per_step=prompts,
        lengths=lengths,
        costs=costs(**changes),
        gpus=gpus,
        max_expiries=2,
    )


def plan(age: int, in_flight: int, limit: str = "hold", **changes: Any) -> Plan:
    return Plan(max_age=age, in_flight_batches=in_flight, on_age_limit=OnAgeLimit(limit), **changes)


# --- counted by hand ------------------------------------------------------------------------------


def test_one_prompt_a_step_at_age_one() -> None:
    """Prompts of 2, 1 and 3 tokens.

    0-2 prompt 0 generates; 2-3 it trains while prompt 1 generates; 3-4 prompt 1 trains, one step
    old; 3-6 prompt 2 generates, its first token before version 2 is there; 6-7 it trains.
    """
    found = simulate(workload(Listed((2, 1, 3)), prompts=1), plan(1, 1), 3, warmup=0)
    assert found.step_s == pytest.approx(7 / 3)
    assert found.trained_tokens_per_s == pytest.approx(6 / 7)
    assert found.ceiling_efficiency == pytest.approx(3 / 7)
    assert found.age_mean == pytest.approx(2 / 6)
    assert found.age_max == 1
    assert found.waiting_share == {"groups": pytest.approx(4 / 7)}
    assert found.latency_max == 3
    # Prompt 3 ends in the moment in which prompt 2 is trained.
    assert found.latency_mean == (2 + 1 + 3 + 1) / 4
    assert not found.held


LONG = Listed((1, 10))
"""Two prompts a step; at age 1 the second one is due in step 2, which could begin at 4 seconds."""


def test_hold_waits_for_the_long_answer() -> None:
    found = simulate(workload(LONG), plan(1, 1), 2, warmup=0)
    assert found.step_s == 11 / 2
    assert found.held
    assert (found.wasted_share, found.length_ratio) == (0, 1)
    # Of 13 tokens: prompt 3's one, and the three of prompt 1 from before version 1.
    assert found.age_mean == pytest.approx(4 / 13)
    assert found.age_max == 1
    assert found.waiting_share == {"groups": pytest.approx(3 / 11), "age_limit": 6 / 11}


def test_expire_loses_what_the_long_answer_had() -> None:
    found = simulate(workload(LONG), plan(1, 1, "expire"), 2, warmup=0)
    assert found.step_s == 5 / 2
    # Four tokens of prompt 1 are cancelled, four of the others trained.
    assert found.cancelled_share == 4 / 8
    assert found.expired_groups == 1 / 2
    assert found.length_ratio == 1


def test_mask_takes_the_first_tokens_of_the_long_answer_out() -> None:
    found = simulate(workload(LONG), plan(1, 1, "mask"), 5, warmup=0)
    assert found.step_s == 11 / 5
    # It is trained in step 5, and version 3 came at 7 seconds: three of its tokens are left.
    assert found.stale_share == pytest.approx(7 / 19)
    assert found.length_ratio == pytest.approx(12 / 19)
    assert found.age_max == 1


def test_a_refit_stops_everything_and_a_validation_the_trainer() -> None:
    plain = simulate(workload(Listed((2, 1, 3)), prompts=1), plan(1, 1), 3, warmup=0)
    refit = simulate(workload(Listed((2, 1, 3)), prompts=1, refit_s=0.5), plan(1, 1), 3, warmup=0)
    assert refit.step_s * 3 == pytest.approx(plain.step_s * 3 + 3 * 0.5)
    # 0-2 and 2-3 as before; 3-5 validation, in which nothing begins; 5-6 prompt 1 trains;
    # 5-8 prompt 2 generates; 8-9 it trains.
    pause = workload(Listed((2, 1, 3)), prompts=1, validation_s=2.0, validation_period=1)
    found = simulate(pause, plan(1, 1), 1, warmup=0)
    assert found.step_s == 5
    assert found.waiting_share == {"groups": 2 / 5, "pause": 2 / 5}


def test_without_in_flight_updates_a_refit_waits_for_what_runs() -> None:
    # 0-2 prompt 0; 2-12 prompt 1 generates; prompt 0 trains until 3, is refitted at 12.
    lengths = Listed((2, 10))
    drained = plan(1, 1, in_flight_updates=False)
    assert simulate(workload(lengths, prompts=1), plan(1, 1), 1, warmup=0).step_s == 3
    found = simulate(workload(lengths, prompts=1), drained, 1, warmup=0)
    assert found.step_s == 12
    assert found.waiting_share == {"groups": 2 / 12, "refit": 9 / 12}


def test_a_place_is_taken_by_the_answer_that_waited_longest() -> None:
    # Three answers of 2, 3 and 4 seconds on two places: the third begins at 2 and ends at 6.
    found = simulate(
        workload(Listed((2, 3, 4)), prompts=3, max_sequences=2), SYNCHRONOUS, 1, warmup=0
    )
    assert found.step_s == 7
    assert found.latency_max == 6


# --- formulas -------------------------------------------------------------------------------------


def test_a_synchronous_step_is_its_longest_answer_plus_training() -> None:
    lengths = log_normal(samples=4)
    setup = workload(lengths, prompts=8, train_token_s=0.01, refit_s=3.0)
    steps, total = 5, 0.0
    for step in range(steps):
        drawn = [n for p in range(8 * step, 8 * step + 8) for n in lengths.draw(p, 0)]
        total += max(drawn) + (1 + 0.01 * sum(drawn)) + 3.0
    assert simulate(setup, SYNCHRONOUS, steps, warmup=0).step_s == pytest.approx(total / steps)


def test_a_barrier_at_falling_speed_takes_longest_alone_plus_all_saturated() -> None:
    lengths = log_normal(samples=4)
    setup = workload(lengths, prompts=8, gpus=2, saturated_s=0.25)
    drawn = [n for position in range(8) for n in lengths.draw(position, 0)]
    expected = max(drawn) + 0.25 / 2 * sum(drawn) + 1 / 2
    assert simulate(setup, SYNCHRONOUS, 1, warmup=0).step_s == pytest.approx(expected)


@pytest.mark.parametrize("limit", list(OnAgeLimit))
def test_constant_lengths_and_enough_age_reach_the_ceiling(limit: OnAgeLimit) -> None:
    # 2.5 steps long: age 3 is enough (the ceiling of 2.5), age 2 is not.
    setup = workload(log_normal(mean=250, log_sd=0), prompts=4, train_step_s=100.0)
    found = simulate(setup, plan(3, 3, limit), 50)
    assert found.ceiling_efficiency == pytest.approx(1)
    assert found.age_max <= 3
    assert found.wasted_share == 0
    less = simulate(setup, plan(2, 2, limit), 50)
    assert less.ceiling_efficiency < 0.95


def saturating(log_sd: float) -> Workload:
    """Eight GPUs whose generators saturate early; half of the work is generation."""
    return workload(
        log_normal(log_sd=log_sd, samples=4, cap=800),
        prompts=32,
        gpus=8,
        sequence_s=1.0,
        saturated_s=0.25,
        train_step_s=0.0,
        train_token_s=0.25,
    )


@pytest.mark.parametrize("log_sd", [0.5, 1.0])
def test_the_best_speedup_is_one_plus_generation_share_times_stretch_minus_one(
    log_sd: float,
) -> None:
    setup = saturating(log_sd)
    synchronous = run_synchronous(setup, 40)
    assert synchronous.generation_share == pytest.approx(0.5)
    formula = 1 + 0.5 * (synchronous.straggler_stretch - 1)
    assert synchronous.best_speedup == pytest.approx(formula)
    # With enough age and in flight a schedule comes close to it: within 10 %, never above.
    best = simulate(setup, plan(64, 8, generating_gpus=4), 60)
    speedup = best.trained_tokens_per_s / synchronous.result.trained_tokens_per_s
    assert 0.9 * formula < speedup <= formula * 1.001


def test_mean_age_is_what_is_in_flight_when_generation_keeps_up() -> None:
    setup = workload(log_normal(log_sd=0.3), prompts=16, train_step_s=100.0)
    for batches in (2, 4):
        found = simulate(setup, plan(8, batches), 60)
        assert found.ceiling_efficiency > 0.98
        assert found.age_mean == pytest.approx(batches, rel=0.1)


# --- what a long tail does ------------------------------------------------------------------------


def tail(correlation: float) -> Workload:
    lengths = log_normal(log_sd=1.0, prompt_correlation=correlation)
    return workload(lengths, prompts=32, train_step_s=100.0)


def test_a_large_age_with_few_batches_has_the_speed_of_many_at_the_age_of_few() -> None:
    setup = tail(0.5)
    few, wide, many = (simulate(setup, plan(*p), 100) for p in ((2, 2), (8, 2), (8, 8)))
    assert wide.ceiling_efficiency > 1.5 * few.ceiling_efficiency
    assert wide.ceiling_efficiency == pytest.approx(many.ceiling_efficiency, rel=0.05)
    assert wide.age_mean < 2.5 < 6 < many.age_mean
    in_order = simulate(setup, plan(8, 2, batching="in_order"), 100)
    assert in_order.ceiling_efficiency == pytest.approx(few.ceiling_efficiency, rel=0.05)


def test_prompts_that_are_always_slow_expire_again() -> None:
    drawn, fixed = (simulate(tail(c), plan(2, 2, "expire"), 100) for c in (0, 1))
    # Drawn anew, long answers come back short: fast, and biased.
    assert 1 / drawn.step_s > 2 / fixed.step_s
    assert drawn.length_ratio < 0.8
    assert fixed.length_ratio == 1
    # Waited for at last, after their tokens were thrown away twice.
    hold = simulate(tail(1), plan(2, 2, "hold"), 100)
    assert fixed.ceiling_efficiency < 1.3 * hold.ceiling_efficiency
    assert fixed.cancelled_share > 0.1


# --- every plan -----------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, Plan]:
    age = draw(st.integers(0, 6))
    gpus = draw(st.sampled_from([None, 4]))
    setup = workload(
        log_normal(
            log_sd=draw(st.sampled_from([0.0, 0.5, 1.5])),
            samples=draw(st.integers(1, 3)),
            prompt_correlation=draw(st.sampled_from([0.0, 0.5, 1.0])),
            cap=draw(st.sampled_from([None, 300])),
            seed=draw(st.integers(0, 1000)),
        ),
        prompts=draw(st.integers(1, 5)),
        gpus=gpus,
        saturated_s=draw(st.sampled_from([0.0, 0.2])),
        max_sequences=draw(st.sampled_from([None, 2])),
        train_step_s=draw(st.sampled_from([5.0, 100.0])),
        train_token_s=draw(st.sampled_from([0.0, 0.1])),
        refit_s=draw(st.sampled_from([0.0, 7.0])),
        validation_s=20.0,
        validation_period=draw(st.sampled_from([None, 3])),
    )
    return setup, Plan(
        max_age=age,
        in_flight_batches=draw(st.integers(1, max(1, age))),
        batching=draw(st.sampled_from(sorted(POLICIES))),
        on_age_limit=draw(st.sampled_from(OnAgeLimit)),
        generating_gpus=draw(st.integers(1, 3)) if gpus and age else None,
        in_flight_updates=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_plan_keeps_the_age_bound_and_its_books(case: tuple[Workload, Plan]) -> None:
    setup, chosen = case
    # Without warm-up nothing is trained that was generated before the measurement.
    found = simulate(setup, chosen, 15, warmup=0)
    assert found.age_mean <= found.age_max <= chosen.max_age
    assert 0 < found.ceiling_efficiency <= 1 + 1e-9
    assert sum(found.waiting_share.values()) <= 1 + 1e-9
    if chosen.on_age_limit is OnAgeLimit.HOLD or chosen.batching == "in_order":
        assert (found.wasted_share, found.length_ratio) == (0, 1)
    if chosen.on_age_limit is OnAgeLimit.EXPIRE:
        assert found.stale_share == 0
    else:
        assert found.cancelled_share == 0


@settings(max_examples=30, deadline=None)
@given(cases())
def test_equal_input_gives_equal_results(case: tuple[Workload, Plan]) -> None:
    assert simulate(*case, 8) == simulate(*case, 8)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_where_hold_never_waits_the_limits_decide_alike(case: tuple[Workload, Plan]) -> None:
    setup, chosen = case
    results: dict[OnAgeLimit, Result] = {
        limit: simulate(setup, replace(chosen, on_age_limit=limit), 10) for limit in OnAgeLimit
    }
    if not results[OnAgeLimit.HOLD].held:
        assert len({repr(result) for result in results.values()}) == 1
