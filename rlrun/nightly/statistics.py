# SPDX-License-Identifier: Apache-2.0
"""One number of a metric's values over the steps of a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum


class Statistic(StrEnum):
    """How the values over the steps become one."""

    MEAN = "mean"
    MEDIAN = "median"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LAST = "last"

    def of(self, values: Sequence[float]) -> float:
        """The statistic of at least one value."""
        match self:
            case Statistic.MEAN:
                return statistics.fmean(values)
            case Statistic.MEDIAN:
                return statistics.median(values)
            case Statistic.MIN:
                return min(values)
            case Statistic.MAX:
                return max(values)
            case Statistic.FIRST:
                return values[0]
            case Statistic.LAST:
                return values[-1]


def series(lines: Sequence[Mapping[str, float]], metric: str, from_step: int = 1) -> list[float]:
    """A metric's values from a step on; steps that did not log it have none."""
    return [line[metric] for line in lines if metric in line and line["step"] >= from_step]
