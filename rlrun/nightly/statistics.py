# SPDX-License-Identifier: Apache-2.0
"""One number of a metric's values over the steps of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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
