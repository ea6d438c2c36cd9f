# SPDX-License-Identifier: Apache-2.0
"""Which plan is advised, and what the numbers beside it are."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from rlrun.scheduler import OnAgeLimit
from rlrun.simulate.clock import Plan
from rlrun.simulate.grid import Axes, Row, advise, run_grid, run_synchronous, try_splits
from rlrun.simulate.measure import Result
from rlrun.simulate.plot import svg
from rlrun.simulate.render import advice_sentences, flags, table
from rlrun.simulate.workload import Costs, LogNormalLengths, Workload

RESULT = Result(
    steps=10,
    step_s=2.0,
    batch_tokens=100.0,
    trained_tokens_per_s=50.0,
    ceiling_efficiency=0.5,
    age_mean=1.0,
    age_max=2,
    cancelled_share=0.0,
    stale_share=0.0,
    length_ratio=1.0,
    expired_groups=0.0,
    waiting_share={},
    latency_mean=3.0,
    latency_max=6.0,
    held=True,
)


def row(age: int, in_flight: int, efficiency: float, limit: str = "hold", **changes: Any) -> Row:
    result = replace(RESULT, ceiling_efficiency=efficiency, **changes)
    plan = Plan(max_age=age, in_flight_batches=in_flight, on_age_limit=OnAgeLimit(limit))
    return Row(plan=plan, result=result, speedup=2 * efficiency)


def test_the_smallest_age_near_the_plateau_is_advised_then_the_fewest_in_flight() -> None:
    rows = [row(1, 1, 0.5), row(2, 1, 0.7), row(4, 4, 0.98), row(4, 2, 0.97), row(8, 2, 1.0)]
    found = advise(rows, OnAgeLimit.HOLD)
    assert found.row is rows[3]
    assert found.worth_it
    assert not advise([row(1, 1, 0.54), row(2, 2, 0.54)], OnAgeLimit.HOLD).worth_it


def test_another_limit_is_only_mentioned_where_it_is_clearly_faster() -> None:
    rows = [row(4, 2, 0.8), row(4, 2, 0.85, "mask", stale_share=0.02)]
    assert advise(rows, OnAgeLimit.HOLD).alternative is None
    rows.append(row(4, 2, 0.95, "expire", cancelled_share=0.1, length_ratio=0.9))
    found = advise(rows, OnAgeLimit.HOLD)
    assert (found.row, found.alternative) == (rows[0], rows[2])
    text = " ".join(advice_sentences(found))
    assert "on_age_limit=expire gives 1.90" in text
    assert "loses 10.0% of the tokens: all of the longest answers." in text


def test_the_age_needed_is_the_longest_latency_in_steps_rounded_up() -> None:
    # From a constant latency of 2.5 steps it is 3; exactly 3 steps need no more than 3.
    for longest, mean, age, batches in ((5.0, 5.0, 3, 3), (6.0, 4.0, 3, 2), (6.1, 0.1, 4, 1)):
        found = advise([row(1, 1, 1, latency_max=longest, latency_mean=mean)], OnAgeLimit.HOLD)
        assert (found.age_needed, found.in_flight_needed) == (age, batches)


def test_the_flags_are_those_of_train() -> None:
    assert flags(row(4, 2, 1.0)) == [
        "grpo=async",
        "grpo.max_trajectory_age_steps=4",
        "grpo.max_num_in_flight_batches_in_generation=2",
        "grpo.on_age_limit=hold",
        "batching=fifo",
    ]
    waits = row(1, 1, 1.0)
    waits = replace(waits, plan=replace(waits.plan, in_flight_updates=False))
    assert flags(waits)[-1] == "grpo.in_flight_weight_updates=false"
    text = " ".join(advice_sentences(advise([waits], OnAgeLimit.HOLD)))
    assert "Every refit waits for the longest group" in text and "needs age" not in text


def small(gpus: int | None) -> Workload:
    return Workload(
        prompts_per_step=8,
        lengths=LogNormalLengths(
            mean=100, log_sd=0.7, cap=None, samples=2, prompt_correlation=0.5, seed=1
        ),
        costs=Costs(
            sequence_s=0.1,
            saturated_s=0.01,
            max_sequences=None,
            train_step_s=0.0,
            train_token_s=0.01,
            refit_s=0.0,
            validation_s=0.0,
            validation_period=None,
        ),
        gpus=gpus,
        max_expiries=2,
    )


def axes(**changes: Any) -> Axes:
    values: dict[str, Any] = {
        "ages": [1, 2],
        "in_flight": [1, 2],
        "batching": ["fifo"],
        "on_age_limit": list(OnAgeLimit),
        "generating_gpus": [None],
        "in_flight_updates": True,
    }
    return Axes(**{**values, **changes})


def test_more_batches_in_flight_than_the_age_are_left_out() -> None:
    pairs = [(p.max_age, p.in_flight_batches) for p in axes(on_age_limit=["hold"]).plans()]
    assert pairs == [(1, 1), (2, 1), (2, 2)]


def test_the_fastest_split_is_found_and_none_where_there_is_nothing_to_share() -> None:
    alone, shared = small(None), small(8)
    assert try_splits(alone, axes(), run_synchronous(alone, 10), 10) == []
    tried = try_splits(shared, axes(), run_synchronous(shared, 10), 10)
    assert [found.plan.generating_gpus for found in tried] == [1, 2, 3, 4, 5, 6, 7]
    best = max(tried, key=lambda found: found.speedup)
    # Generation is half of the work, but its answers are too few to saturate the generators.
    assert best.plan.generating_gpus in (5, 6, 7)
    many = replace(shared, gpus=256)
    numbers = [
        f.plan.generating_gpus for f in try_splits(many, axes(), run_synchronous(many, 2), 2)
    ]
    assert (len(numbers), numbers[0], numbers[-1]) == (9, 1, 255)


def test_the_picture_is_xml_with_a_point_for_every_plan() -> None:
    setup = small(4)
    synchronous = run_synchronous(setup, 10)
    rows = run_grid(setup, axes(generating_gpus=[2, 3]), synchronous, 10)
    root = ET.fromstring(svg(rows, synchronous, rows[0]))
    circles = [e for e in root.iter() if e.tag.endswith("circle")]
    series = 2 * len(OnAgeLimit)
    assert len(circles) == len(rows) + series + 1
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= 760 and 0 <= float(circle.attrib["cy"]) <= 460


def test_plans_that_never_reach_the_limit_share_a_line() -> None:
    setup = replace(small(None), lengths=replace(small(None).lengths, log_sd=0.0))  # type: ignore[type-var]
    rows = run_grid(setup, axes(ages=[2], in_flight=[1]), run_synchronous(setup, 10), 10)
    lines = table(rows, rows[1]).splitlines()
    assert len(rows) == 3 and len(lines) == 2
    assert "hold/mask/expire" in lines[1] and lines[1].endswith("<")


def test_plans_that_differ_have_lines_of_their_own() -> None:
    # Masking never waits: that it was not held does not make it equal to the one that was.
    rows = [
        row(2, 2, 0.4),
        row(2, 2, 0.7, "mask", held=False),
        row(2, 2, 0.7, "expire", held=False),
    ]
    lines = table(rows, rows[0]).splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["hold", "mask/expire"]


@pytest.mark.parametrize("efficiency", [0.3, 0.9])
def test_one_sentence_says_whether_it_is_worth_it(efficiency: float) -> None:
    first = advice_sentences(advise([row(2, 1, efficiency)], OnAgeLimit.HOLD))[0]
    worth = efficiency > 0.5
    assert first.startswith(f"Async is {'' if worth else 'not '}worth it here: ")
