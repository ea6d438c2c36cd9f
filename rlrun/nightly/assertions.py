# SPDX-License-Identifier: Apache-2.0
"""The kinds of assertions that a recipe's nightly file may make, and how each one is decided.

A kind is a dataclass; its fields are the keys of the file.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rlrun.audit import audit
from rlrun.config.schema import RunConfig
from rlrun.config.suggest import nearest
from rlrun.console.counted import counted
from rlrun.grpo.async_ import AsyncGRPO
from rlrun.metrics.registry import METRICS, find, is_declared
from rlrun.nightly.evidence import FIRST_TIMED_STEP, Evidence, Verdict, step_seconds
from rlrun.nightly.statistics import Statistic

SLOWER_BY = 0.05
"""Share by which steps may be slower than the trend."""

BEFORE_TRAINING = 0
"""The step of the line that has the validation before the first update."""


class Assertion(ABC):
    """A statement about the runs of all seeds."""

    def mistakes(self, config: RunConfig) -> list[str]:
        """What keeps it from ever being decided for a run with these settings."""
        return []

    @abstractmethod
    def decide(self, evidence: Evidence) -> Verdict:
        """Whether it holds."""


@dataclass(frozen=True)
class Bound(Assertion):
    """A statistic of a metric over the steps lies within bounds, for every seed.

    Attributes:
        metric: A declared metric.
        statistic: Over its values.
        at_least: Lower bound.
        at_most: Upper bound.
        from_step: The first step that counts.
    """

    metric: str
    statistic: Statistic
    at_least: float | None = None
    at_most: float | None = None
    from_step: int = 1

    def mistakes(self, config: RunConfig) -> list[str]:
        """See ``Assertion.mistakes``."""
        found = metric_mistakes(self.metric, config)
        if self.at_least is None and self.at_most is None:
            found.append("neither at_least nor at_most is given")
        found += _too_few(config, self.from_step, f"from_step={self.from_step} is beyond them")
        return found

    def decide(self, evidence: Evidence) -> Verdict:
        """See ``Assertion.decide``."""
        values: list[float] = []
        for run in evidence.runs:
            logged = run.series(self.metric, self.from_step)
            if not logged:
                return Verdict(False, f"seed {run.seed} never logged {self.metric}")
            values.append(self.statistic.of(logged))
        low, high = min(values), max(values)
        passed = self.at_least is None or low >= self.at_least
        passed &= self.at_most is None or high <= self.at_most
        asked = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        asked += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        text = f"{self.statistic} of {self.metric}: {_list(values)}; {' and '.join(asked)}"
        above = self.at_most is not None and (self.at_least is None or high > self.at_most)
        return Verdict(passed, text, high if above else low)


@dataclass(frozen=True)
class Rises(Assertion):
    """The mean over the last steps exceeds that over the first ones, averaged over the seeds.

    Attributes:
        metric: A declared metric; of validation, the one before the first step counts.
        window: Logged values in each of the two windows.
        by: Least difference, in the metric's unit.
    """

    metric: str
    window: int
    by: float

    def mistakes(self, config: RunConfig) -> list[str]:
        """See ``Assertion.mistakes``."""
        found = metric_mistakes(self.metric, config)
        if self.window < 1:
            found.append(f"window={self.window} is below 1")
        if self.by <= 0:
            found.append(f"by={self.by:g} is not above 0: nothing would have to rise")
        needed = 2 * self.window
        return found + _too_few(config, needed, f"two windows of {self.window} do not fit in")

    def decide(self, evidence: Evidence) -> Verdict:
        """See ``Assertion.decide``."""
        rises: list[float] = []
        for run in evidence.runs:
            logged = run.series(self.metric, BEFORE_TRAINING)
            if len(logged) < 2 * self.window:
                text = f"seed {run.seed} logged {self.metric} {counted(len(logged), 'time')}"
                return Verdict(False, f"{text}; two windows need {2 * self.window}")
            first, last = logged[: self.window], logged[-self.window :]
            rises.append(statistics.fmean(last) - statistics.fmean(first))
        mean = statistics.fmean(rises)
        text = f"{self.metric} rose by {_list(rises)}, {mean:.4g} on average; at least {self.by:g}"
        return Verdict(mean >= self.by, text, mean)


@dataclass(frozen=True)
class AgeBound(Assertion):
    """No trained token is older than the run allows; of age 0 in a synchronous run."""

    def decide(self, evidence: Evidence) -> Verdict:
        """See ``Assertion.decide``."""
        grpo = evidence.config.grpo
        limit = grpo.max_trajectory_age_steps if isinstance(grpo, AsyncGRPO) else 0
        ages = [run.series("age/max") for run in evidence.runs]
        if not all(ages):
            return Verdict(False, "age/max was never logged")
        oldest = max(max(values) for values in ages)
        return Verdict(oldest <= limit, f"largest age/max: {oldest:g}; at most {limit}", oldest)


@dataclass(frozen=True)
class LedgerClosed(Assertion):
    """At every step, tokens/generated is the sum of all other tokens/ metrics."""

    _PARTS: ClassVar[tuple[str, ...]] = tuple(
        name for name in METRICS if name.startswith("tokens/") and name != "tokens/generated"
    )

    def decide(self, evidence: Evidence) -> Verdict:
        """See ``Assertion.decide``."""
        count = 0
        for run in evidence.runs:
            for line in run.lines:
                found = {name: value for name, value in line.items() if value is not None}
                if found["step"] == BEFORE_TRAINING:
                    continue
                where = f"seed {run.seed}, step {found['step']:g}"
                missing = {"tokens/generated", *self._PARTS} - found.keys()
                if missing:
                    return Verdict(False, f"{where}: {min(missing)} is missing")
                gap = found["tokens/generated"] - sum(found[name] for name in self._PARTS)
                if gap:
                    text = f"{where}: {counted(gap, 'token', form='g')} unaccounted for"
                    return Verdict(False, text, gap)
                count += 1
        return Verdict(count > 0, f"tokens add up in {counted(count, 'step')}", 0.0)


@dataclass(frozen=True)
class Audited(Assertion):
    """``rlrun audit`` finds nothing: each prompt used once, decisions replayed, ledger closed."""

    def decide(self, evidence: Evidence) -> Verdict:
        """See ``Assertion.decide``."""
        restarts = 0
        for run in evidence.runs:
            report = audit(run.folder)
            restarts += report.restarts
            if not report.ok:
                count = counted(len(report.violations), "violation")
                found = f"{count}, the first: {report.violations[0]}"
                return Verdict(False, f"seed {run.seed}: {found}", float(len(report.violations)))
        return Verdict(True, f"no violation over {counted(restarts, 'restart')}", 0.0)


@dataclass(frozen=True)
class StepTime(Assertion):
    """Steps are not slower than the trend of this machine by more than a share.

    Attributes:
        slower_by: That share.
    """

    slower_by: float = SLOWER_BY

    def mistakes(self, config: RunConfig) -> list[str]:
        """See ``Assertion.mistakes``."""
        found = [f"slower_by={self.slower_by:g} is not above 0"] if self.slower_by <= 0 else []
        return found + _too_few(config, FIRST_TIMED_STEP, "the first one is not timed")

    def decide(self, evidence: Evidence) -> Verdict:
        """See ``Assertion.decide``."""
        found = step_seconds(evidence.runs)
        if found is None:
            return Verdict(False, "perf/step_s was never logged")
        expected = evidence.baseline_step_s
        if expected is None:
            return Verdict(True, f"{found:.4g} s per step; no trend yet to compare with", found)
        slower = found / expected - 1
        text = f"{found:.4g} s per step, {slower:+.1%} against {expected:.4g} s of the trend"
        return Verdict(slower <= self.slower_by, f"{text}; at most {self.slower_by:+.1%}", found)


KINDS: dict[str, type[Assertion]] = {
    "bound": Bound,
    "rises": Rises,
    "age_bound": AgeBound,
    "ledger": LedgerClosed,
    "audit": Audited,
    "step_time": StepTime,
}
"""The values of ``kind``."""


def metric_mistakes(name: str, config: RunConfig) -> list[str]:
    """What is wrong with the name of a metric for such a run."""
    if not is_declared(name):
        return [f"metric={name} is not declared; did you mean {nearest(name, METRICS)[0]}"]
    only = find(name).only
    if only == "asynchronous schedules" and not config.grpo.concurrent:
        return [f"metric={name} is only logged with {only}, and the run is synchronous"]
    return []


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _too_few(config: RunConfig, needed: int, why: str) -> list[str]:
    steps = config.grpo.max_num_steps
    if steps is None or steps >= needed:
        return []
    return [f"the run has {counted(steps, 'step')}: {why}"]
