# SPDX-License-Identifier: Apache-2.0
"""Every metric that exists, with unit, reduction and meaning.

The declarations are in metric_table.py; docs/metrics.md is generated from them. Logging a name that
is not declared is an error: it has no meaning that a reader could look up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cache

from rlrun.metrics.table import TABLE


class Reduction(StrEnum):
    """How the values of several sources (ranks, microbatches, groups) become one."""

    MEAN = "mean"
    """Mean, weighted with what each value is the mean over."""
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    LAST = "last"
    """All sources know the same value; the last one given counts."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The declaration of a metric.

    Attributes:
        name: "<stage>/<name>"; a part in angle brackets stands for any text (the last one may
            contain slashes).
        unit: What it is measured in; "1" for a ratio or share.
        reduction: How values of several sources are combined.
        meaning: In words.
        remedy: What to do when its values look wrong; empty where there is nothing to say.
        only: The parts that a run must have to log it, such as "asynchronous schedules"; empty
            where any run may.
        timing: Depends on the clock (or on when a run was interrupted), hence outside the promise
            that equal runs give equal metrics.
    """

    name: str
    unit: str
    reduction: Reduction
    meaning: str
    remedy: str
    only: str
    timing: bool


class UndeclaredMetric(LookupError):
    """A metric is used that the table does not have: a mistake in rlrun, not of the user."""


def find(name: str) -> Metric:
    """The declaration of a metric.

    Raises:
        UndeclaredMetric: There is none.
    """
    metric = _find(name)
    if metric is None:
        raise UndeclaredMetric(f"metric {name!r} is not declared in rlrun/metrics/table.py")
    return metric


def is_declared(name: str) -> bool:
    """Whether a name is a metric."""
    return _find(name) is not None


def why_never_logged(name: str) -> str | None:
    """What keeps every present run from logging a name that a user gave; None if nothing does.

    Reward parts are open: whether an environment names a certain one shows when it scores.
    """
    metric = _find(name)
    if metric is None:
        known = [other.name for other in METRICS.values() if not other.only]
        near = get_close_matches(name, known, n=1, cutoff=0)[0]
        return f"{name} is not a metric; did you mean {near}"
    if metric.only:
        return f"{name} is only logged with {metric.only}"
    return None


def _parse(table: str) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for entry in re.split(r"\n(?=\S)", table.strip()):
        head, *text = (line.strip() for line in entry.splitlines())
        meaning, _, remedy = " ".join(text).partition(" ? ")
        name, unit, reduction, *only = head.split(maxsplit=3)
        assert name not in metrics, f"{name} is declared twice"
        metrics[name] = Metric(
            name=name,
            unit=unit,
            reduction=Reduction(reduction),
            meaning=meaning,
            remedy=remedy,
            only=only[0] if only else "",
            timing=_is_timing(name),
        )
    return metrics


_OF_INTERRUPTIONS = {"tokens/generated", "tokens/lost"}
"""What a killed run had sampled beyond its checkpoint was sampled, and is counted."""


def _is_timing(name: str) -> bool:
    if name in _OF_INTERRUPTIONS:
        return True
    return name.startswith(("perf/", "idle/")) or name.endswith("seconds")


METRICS: dict[str, Metric] = _parse(TABLE)
"""All declarations by name, in the order of the documentation."""


def _pattern(name: str) -> re.Pattern[str]:
    *heads, tail = re.split(r"<\w+>", name)
    return re.compile("[^/]+".join(re.escape(head) for head in heads) + ".+" + re.escape(tail))


_PATTERNS = [(_pattern(name), metric) for name, metric in METRICS.items() if "<" in name]


@cache
def _find(name: str) -> Metric | None:
    if "<" not in name and name in METRICS:
        return METRICS[name]
    return next((metric for pattern, metric in _PATTERNS if pattern.fullmatch(name)), None)
