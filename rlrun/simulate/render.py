# SPDX-License-Identifier: Apache-2.0
"""What `rlrun simulate` prints: a table, sentences of advice, or the same as JSON."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rlrun.console.counted import counted
from rlrun.scheduler import OnAgeLimit
from rlrun.simulate.clock import Plan
from rlrun.simulate.grid import NEAR_PLATEAU, Advice, Row, Synchronous
from rlrun.simulate.measure import Result

_HEAD = (
    "age",
    "in flight",
    "batching",
    "at the limit",
    "speed-up",
    "E",
    "age mean",
    "age max",
    "cancelled",
    "masked",
    "length",
    "idle",
)
_LEGEND = (
    "speed-up: trained tokens per second over the synchronous run's. E: the same over those "
    "without idle time, waste and stalls. age, in flight: max_trajectory_age_steps and "
    "max_num_in_flight_batches_in_generation. cancelled, masked: share of the generated tokens "
    "lost to the age limit. length: trained tokens over those of the prompts' first attempts. "
    "idle: share of the time in which the trainer waits."
)


_SEPARATE = (
    "Generation and training are taken to have a machine of their own each, of the speed that was "
    "given. Where they share GPUs or cores, say with --gpus how many there are."
)


def table(rows: Sequence[Row], advised: Row) -> str:
    """The grid; the advised plan is marked.

    Plans that differ in on_age_limit alone share a line where the limit is never reached.
    """
    split = any(row.plan.generating_gpus is not None for row in rows)
    lines = [[*(["GPUs"] if split else []), *_HEAD, ""]]
    for _, group in itertools.groupby(rows, key=_but_limit):
        equal = list(group)
        limits = "/".join(row.plan.on_age_limit for row in equal)
        lines.append(_cells(equal[0], limits, split, advised in equal))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _but_limit(row: Row) -> tuple[Plan, Result]:
    return replace(row.plan, on_age_limit=OnAgeLimit.HOLD), row.result


def _cells(row: Row, limits: str, split: bool, advised: bool) -> list[str]:
    plan, result = row.plan, row.result
    return [
        *([str(plan.generating_gpus)] if split else []),
        str(plan.max_age),
        str(plan.in_flight_batches),
        plan.batching,
        limits,
        f"{row.speedup:.2f}",
        f"{result.ceiling_efficiency:.2f}",
        f"{result.age_mean:.2f}",
        str(result.age_max),
        f"{result.cancelled_share:.1%}",
        f"{result.stale_share:.1%}",
        f"{result.length_ratio:.2f}",
        f"{sum(result.waiting_share.values()):.0%}",
        "<" if advised else "",
    ]


def text(
    rows: Sequence[Row],
    tried: Sequence[Row],
    synchronous: Synchronous,
    advice: Advice,
    *,
    shared: bool,
) -> str:
    """Everything for people.

    Args:
        rows: The grid.
        tried: Splits that were tried before it; empty if there is nothing to choose.
        synchronous: What the grid is compared with.
        advice: Which row to take.
        shared: Whether generation and training share out GPUs.
    """
    parts = [
        baseline_sentence(synchronous),
        *([] if shared else [_SEPARATE]),
        *([splits_sentence(tried)] if tried else []),
        table(rows, advice.row),
        _LEGEND,
        " ".join(advice_sentences(advice)),
    ]
    return "\n\n".join(parts)


def baseline_sentence(synchronous: Synchronous) -> str:
    """What the synchronous run takes and what is possible at most."""
    share = synchronous.generation_share
    of_work = "" if share is None else f", generation is {share:.0%} of the work"
    return (
        f"Synchronous: a step takes {_seconds(synchronous.result.step_s)}, of which generation "
        f"{_seconds(synchronous.generation_s)} and training {_seconds(synchronous.training_s)}; "
        f"stragglers stretch generation by {synchronous.straggler_stretch:.2f}{of_work}. "
        f"No schedule can be more than {synchronous.best_speedup:.2f} times as fast here."
    )


def splits_sentence(tried: Sequence[Row]) -> str:
    """What each number of generating GPUs gives."""
    plan = tried[0].plan
    found = ", ".join(f"{row.plan.generating_gpus}: {row.speedup:.2f}" for row in tried)
    return (
        f"Speed-up by number of generating GPUs, at age {plan.max_age} with "
        f"{_batches(plan.in_flight_batches)} in flight: {found}."
    )


def advice_sentences(advice: Advice) -> list[str]:
    """Whether async is worth it, what to take, and what to pass to `rlrun train`."""
    row = advice.row
    plan, result = row.plan, row.result
    gain = f"{row.speedup:.2f} times the synchronous speed"
    cost = f"at a mean age of {result.age_mean:.1f} steps (E {result.ceiling_efficiency:.2f})"
    found = []
    if advice.worth_it:
        found.append(
            f"Async is worth it here: {gain} {cost} with age {plan.max_age} and "
            f"{_batches(plan.in_flight_batches)} in flight, the smallest age within "
            f"{1 - NEAR_PLATEAU:.0%} of the best E of on_age_limit={plan.on_age_limit}."
        )
    else:
        found.append(
            f"Async is not worth it here: {gain} {cost} is all that on_age_limit="
            f"{plan.on_age_limit} gives with these values. Stay with grpo=sync."
        )
    if plan.in_flight_updates:
        found.append(
            f"The longest group ({_seconds(result.latency_max)} in steps of "
            f"{_seconds(result.step_s)}) needs age {advice.age_needed}: with less, steps wait for "
            f"it or it is lost or masked. The mean latency of "
            f"{_seconds(result.latency_mean)} needs {_batches(advice.in_flight_needed)} in flight."
        )
    else:
        found.append(
            "Every refit waits for the longest group that runs, at any age; with in-flight updates "
            "none does."
        )
    if advice.alternative is not None:
        found.append(_alternative_sentence(advice.alternative))
    if plan.generating_gpus is not None:
        found.append(f"GPUs that generate: {plan.generating_gpus}; the others train.")
    if advice.worth_it:
        found.append(f"Pass: {' '.join(flags(row))}")
    return found


def _alternative_sentence(row: Row) -> str:
    plan, result = row.plan, row.result
    which = "the first" if plan.on_age_limit is OnAgeLimit.MASK else "all"
    return (
        f"on_age_limit={plan.on_age_limit} gives {row.speedup:.2f} with age {plan.max_age} and "
        f"{_batches(plan.in_flight_batches)} in flight, and loses {result.wasted_share:.1%} of the "
        f"tokens: {which} of the longest answers."
    )


def flags(row: Row) -> list[str]:
    """What to add to `rlrun train` for a plan."""
    plan = row.plan
    updates = [] if plan.in_flight_updates else ["grpo.in_flight_weight_updates=false"]
    return [
        "grpo=async",
        f"grpo.max_trajectory_age_steps={plan.max_age}",
        f"grpo.max_num_in_flight_batches_in_generation={plan.in_flight_batches}",
        f"grpo.on_age_limit={plan.on_age_limit}",
        f"batching={plan.batching}",
        *updates,
    ]


def to_json(
    rows: Sequence[Row], tried: Sequence[Row], synchronous: Synchronous, advice: Advice
) -> dict[str, Any]:
    """Everything for programs."""
    return {
        "synchronous": asdict(synchronous),
        "splits": [asdict(row) for row in tried],
        "rows": [asdict(row) for row in rows],
        "advice": {
            **asdict(advice),
            "row": rows.index(advice.row),
            "alternative": None if advice.alternative is None else rows.index(advice.alternative),
            "flags": flags(advice.row),
            "text": advice_sentences(advice),
        },
    }


def _batches(count: int) -> str:
    return counted(count, "batch", "batches")


def _seconds(value: float) -> str:
    if value >= 100 or value == 0:
        return f"{value:.0f} s"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f} s"
