# SPDX-License-Identifier: Apache-2.0
"""What assertions are decided by: the runs of all seeds, and what a decision says."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.errors import CheckFailed

FIRST_TIMED_STEP = 2
"""The first step compiles, fills caches and waits for workers."""


@dataclass(frozen=True, slots=True)
class SeedRun:
    """A run that was done.

    Attributes:
        seed: Its grpo.seed.
        folder: Its run directory.
        lines: Its metrics.jsonl; None stands for what was not finite.
    """

    seed: int
    folder: Path
    lines: Sequence[Mapping[str, float | None]]

    def series(self, metric: str, from_step: int = 1) -> list[float]:
        """A metric's values from a step on; steps that did not log it have none.

        Raises:
            CheckFailed: One was not finite: no statistic over the others says anything then.
        """
        values: list[float] = []
        for line in self.lines:
            step = line["step"] or 0
            if metric not in line or step < from_step:
                continue
            value = line[metric]
            if value is None:
                where, what = f"seed {self.seed}, step {step:g}", f"{metric} was not finite"
                raise CheckFailed(where, what, "Look at that step in the run's log")
            values.append(value)
        return values


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an assertion is decided by.

    Attributes:
        runs: One per seed, all of them done.
        config: Their configuration, but for the seed.
        baseline_step_s: Seconds per step that the trend expects; None before there is a trend.
    """

    runs: Sequence[SeedRun]
    config: RunConfig
    baseline_step_s: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """An assertion's result.

    Attributes:
        passed: Whether it holds.
        text: What was found and what was asked for.
        value: The number that was compared, the worst of the seeds; None if there is none.
    """

    passed: bool
    text: str
    value: float | None = None


def step_seconds(runs: Sequence[SeedRun]) -> float | None:
    """Median over the steps of perf/step_s, then over the seeds; the first step is left out."""
    per_run = [run.series("perf/step_s", FIRST_TIMED_STEP) for run in runs]
    medians = [statistics.median(values) for values in per_run if values]
    return statistics.median(medians) if medians else None
