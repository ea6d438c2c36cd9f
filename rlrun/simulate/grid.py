# SPDX-License-Identifier: Apache-2.0
"""Compares plans: simulates a grid, says which plan to take and whether async is worth it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlrun.scheduler import OnAgeLimit
from rlrun.simulate.clock import SYNCHRONOUS, Plan, simulate
from rlrun.simulate.measure import Result
from rlrun.simulate.workload import Workload

NEAR_PLATEAU = 0.97
"""A plan with at least this share of the best one's efficiency is as good: the rest is noise."""
WORTH_IT = 1.1
"""Speed-up over the synchronous run from which asynchronous training is worth its older data."""
MOST_SPLITS = 9
"""As many numbers of generating GPUs are tried, evenly spread."""
CLEARLY_FASTER = 1.1
"""Over the advised plan: from here on another on_age_limit is mentioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronous:
    """The synchronous run that the plans are compared with, and what it says about them.

    Attributes:
        result: As measured.
        generation_s: Seconds of generation per step: its longest answer decides.
        training_s: Seconds of training per step.
        straggler_stretch: Seconds of generation over those at the saturated rate, or, where the
            speed does not depend on the number of sequences, over the mean latency (sigma).
        generation_share: Share of generation in the work of a step at saturated rates (f); None
            where generation does not saturate.
        best_speedup: What no schedule can surpass on these machines: no idle time, no waste.
    """

    result: Result
    generation_s: float
    training_s: float
    straggler_stretch: float
    generation_share: float | None
    best_speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A plan and how it did.

    Attributes:
        plan: The schedule.
        result: As measured.
        speedup: Trained tokens per second over those of the synchronous run.
    """

    plan: Plan
    result: Result
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to take.

    Attributes:
        row: The smallest age, then the fewest batches in flight, near the plateau of efficiency.
        worth_it: Whether its speed-up reaches WORTH_IT.
        age_needed: Age that the longest group needs: ceil(longest latency / step time). With less,
            steps wait for it, or it is expired or masked.
        in_flight_needed: Batches in flight that keep the trainer fed: ceil(mean latency / step
            time).
        alternative: A plan with another on_age_limit that is clearly faster; None if there is none.
    """

    row: Row
    worth_it: bool
    age_needed: int
    in_flight_needed: int
    alternative: Row | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The values that are combined; pairs with more batches in flight than the age are left out.

    Attributes:
        ages: Values of max_age.
        in_flight: Values of in_flight_batches.
        batching: Names of policies.
        on_age_limit: The first is preferred where others are not clearly faster.
        generating_gpus: Numbers of GPUs that generate; (None,) if they are not shared out.
        in_flight_updates: As in Plan.
    """

    ages: Sequence[int]
    in_flight: Sequence[int]
    batching: Sequence[str]
    on_age_limit: Sequence[OnAgeLimit]
    generating_gpus: Sequence[int | None]
    in_flight_updates: bool

    def plans(self) -> list[Plan]:
        """All combinations, those that differ in on_age_limit alone beside each other."""
        return [
            Plan(
                max_age=age,
                in_flight_batches=batches,
                batching=policy,
                on_age_limit=limit,
                generating_gpus=gpus,
                in_flight_updates=self.in_flight_updates,
            )
            for gpus, policy, age, batches, limit in itertools.product(
                self.generating_gpus, self.batching, self.ages, self.in_flight, self.on_age_limit
            )
            if batches <= max(1, age)
        ]


def run_synchronous(workload: Workload, steps: int) -> Synchronous:
    """Simulates the synchronous run."""
    result = simulate(workload, SYNCHRONOUS, steps)
    gpus = workload.gpus or 1
    costs = workload.costs
    training = costs.train_s(result.batch_tokens, gpus)
    generation = result.step_s - training - costs.stall_s
    saturated = costs.least_token_s * result.batch_tokens / gpus
    ceiling = workload.ceiling_s(result.batch_tokens) + costs.stall_s
    return Synchronous(
        result=result,
        generation_s=generation,
        training_s=training,
        straggler_stretch=generation / (saturated or result.latency_mean),
        generation_share=saturated / (saturated + training) if saturated else None,
        best_speedup=result.step_s / ceiling,
    )


def run_grid(workload: Workload, axes: Axes, synchronous: Synchronous, steps: int) -> list[Row]:
    """Simulates every combination, in the order of ``Axes.plans``."""
    base = synchronous.result.trained_tokens_per_s
    rows: list[Row] = []
    unlimited: dict[Plan, Result] = {}
    for plan in axes.plans():
        # Where hold never has to wait, the three limits take the same decisions throughout.
        key = replace(plan, on_age_limit=OnAgeLimit.HOLD)
        if key not in unlimited:
            unlimited[key] = simulate(workload, key, steps)
        result = unlimited[key]
        if plan != key and result.held:
            result = simulate(workload, plan, steps)
        speedup = result.trained_tokens_per_s / base
        rows.append(Row(plan=plan, result=result, speedup=speedup))
    return rows


def try_splits(workload: Workload, axes: Axes, synchronous: Synchronous, steps: int) -> list[Row]:
    """Tries the numbers of generating GPUs, with the largest age and batches in flight.

    The rule that both parts take equally long at their saturated rates is not enough: generators
    that long answers keep from saturating need more than their share.

    Returns:
        A row per number, at most MOST_SPLITS of them; empty if GPUs are not shared out.
    """
    gpus = workload.gpus
    if gpus is None:
        return []
    count = min(MOST_SPLITS, gpus - 1)
    numbers = {1 + round(index * (gpus - 2) / max(1, count - 1)) for index in range(count)}
    age = max(axes.ages)
    plan = Axes(
        ages=[age],
        in_flight=[max(batches for batches in axes.in_flight if batches <= age)],
        batching=axes.batching[:1],
        on_age_limit=axes.on_age_limit[:1],
        generating_gpus=sorted(numbers),
        in_flight_updates=axes.in_flight_updates,
    )
    return run_grid(workload, plan, synchronous, steps)


def advise(rows: Sequence[Row], preferred: OnAgeLimit) -> Advice:
    """Chooses a plan.

    Args:
        rows: The grid.
        preferred: The on_age_limit whose plans are chosen from.
    """
    row = _choose([row for row in rows if row.plan.on_age_limit is preferred])
    others = [row for row in rows if row.plan.on_age_limit is not preferred]
    alternative = None
    if others:
        candidate = _choose(others)
        if candidate.speedup >= CLEARLY_FASTER * row.speedup:
            alternative = candidate
    result = row.result
    return Advice(
        row=row,
        worth_it=row.speedup >= WORTH_IT,
        age_needed=_batches(result.latency_max, result.step_s),
        in_flight_needed=max(1, _batches(result.latency_mean, result.step_s)),
        alternative=alternative,
    )


def _choose(rows: Sequence[Row]) -> Row:
    best = max(row.result.ceiling_efficiency for row in rows)
    near = [row for row in rows if row.result.ceiling_efficiency >= NEAR_PLATEAU * best]
    # min takes the first of equals: the policy that was named first.
    return min(
        near,
        key=lambda row: (
            row.plan.max_age,
            row.plan.in_flight_batches,
            -round(row.result.ceiling_efficiency, 3),
        ),
    )


def _batches(latency_s: float, step_s: float) -> int:
    # The margin takes out what rounding adds to a latency of exactly so many steps.
    return math.ceil(latency_s / step_s * (1 - 1e-9))
