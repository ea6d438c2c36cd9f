# SPDX-License-Identifier: Apache-2.0
"""Drives the scheduler on a virtual clock: admits, decodes, trains, refits, validates, measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rlrun.batching.fifo import Fifo
from rlrun.batching.freshest import Freshest
from rlrun.batching.in_order import InOrder
from rlrun.interfaces import Batching
from rlrun.scheduler import (
    Admit,
    Cancel,
    Event,
    Fail,
    Finish,
    GroupCancelled,
    GroupFinished,
    Hold,
    OnAgeLimit,
    Outcome,
    Paused,
    Resumed,
    Scheduler,
    SchedulerSettings,
    StepTrained,
    TokenCategory,
    Train,
    VersionPublished,
)
from rlrun.simulate.generators import Generators, Group
from rlrun.simulate.measure import Measure, Result, Versions
from rlrun.simulate.workload import Workload

POLICIES: Mapping[str, type[Batching]] = MappingProxyType(
    {"fifo": Fifo, "in_order": InOrder, "freshest": Freshest}
)
"""Batching policies by the name that configures them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule that is to be tried.

    Attributes:
        max_age: Bound on the age of a trained token in steps; 0 is the synchronous run.
        in_flight_batches: Batches that may generate at once.
        batching: Name of the policy.
        on_age_limit: What happens to groups that would pass the bound.
        generating_gpus: How many of the workload's GPUs generate; None if they are not shared out
            or, at age 0, if all of them do both in turn.
        in_flight_updates: Whether generation goes on with new weights; otherwise a refit waits for
            all that runs.
    """

    max_age: int
    in_flight_batches: int
    batching: str = "fifo"
    on_age_limit: OnAgeLimit = OnAgeLimit.HOLD
    generating_gpus: int | None = None
    in_flight_updates: bool = True


SYNCHRONOUS = Plan(max_age=0, in_flight_batches=1)
"""Generate, train and refit in turn, on all GPUs."""


def simulate(workload: Workload, plan: Plan, steps: int, warmup: int | None = None) -> Result:
    """Runs a plan and measures it.

    Args:
        workload: What is generated and trained.
        plan: The schedule.
        steps: Steps that are measured.
        warmup: Steps before them; by default twice as many as a group can take, but at most
            ``steps``.

    Raises:
        ValueError: The plan has a value that no rule is defined for.
    """
    if warmup is None:
        warmup = min(steps, 2 * (plan.max_age + 1))
    return _Run(workload, plan).run(steps, warmup)


class _Run:
    def __init__(self, workload: Workload, plan: Plan) -> None:
        self._workload, self._plan = workload, plan
        everything = workload.gpus or 1
        generating = plan.generating_gpus or everything
        self._training_gpus = everything - (plan.generating_gpus or 0)
        self._scheduler = Scheduler(_settings(workload, plan), POLICIES[plan.batching]())
        self._generators = Generators(workload.costs, generating)
        self._groups: dict[int, Group] = {}
        self._batch: Train | None = None
        self._now = 0.0
        # The trainer does one thing at a time: what ends when, and what follows.
        self._busy_until = math.inf
        self._then: Callable[[], None] = self._nothing
        self._drains = False
        self._paused = False
        self._versions = Versions()
        self._measure = Measure(workload, self._versions)

    def run(self, steps: int, warmup: int) -> Result:
        measure = self._measure
        self._apply(self._scheduler.started_event())
        while measure.steps < warmup:
            self._next()
        measure.begin(self._now, self._scheduler.ledger())
        while measure.steps < steps:
            self._next()
        return measure.end(self._now, self._scheduler.ledger())

    def _next(self) -> None:
        """Goes to what happens next. Of two things at once, a sample ends first."""
        wait = self._generators.seconds_to_next_end()
        until = self._busy_until - self._now
        assert min(wait, until) < math.inf, "nothing is left to wait for"
        self._measure.wait(self._scheduler.waiting, min(wait, until))
        if wait <= until:
            self._now += wait
            group = self._generators.end_next()
            if group is not None:
                self._finished(group)
        else:
            self._generators.advance(until)
            self._now = self._busy_until
            self._busy_until = math.inf
            self._then()

    def _occupy(self, seconds: float, then: Callable[[], None]) -> None:
        self._busy_until = self._now + seconds
        self._then = then

    def _nothing(self) -> None:
        raise AssertionError("the trainer was not busy")

    def _apply(self, event: Event) -> None:
        answers: list[Event] = []
        for decision in self._scheduler.apply(event):
            if isinstance(decision, Admit):
                self._admit(decision)
            elif isinstance(decision, Train):
                self._batch = decision
                tokens = sum(sum(self._groups[p].lengths) for p in decision.positions)
                seconds = self._workload.costs.train_s(tokens, self._training_gpus)
                self._occupy(seconds, self._trained)
            elif isinstance(decision, Cancel):
                self._measure.expired()
                tokens = self._generators.cancel(self._groups.pop(decision.position))
                answers.append(GroupCancelled(decision.position, decision.attempt, tokens))
            elif isinstance(decision, Hold):
                self._measure.held = True
            else:
                assert not isinstance(decision, Fail | Finish), decision
        for answer in answers:
            self._apply(answer)

    def _admit(self, decision: Admit) -> None:
        position, attempt = decision.position, decision.attempt
        lengths = self._workload.lengths.draw(position, attempt)
        group = Group(position, attempt, self._now, lengths)
        self._groups[position] = group
        self._generators.start(group)

    def _finished(self, group: Group) -> None:
        self._measure.finished(group, self._now)
        oldest = self._versions.oldest(group)
        tokens = sum(group.lengths)
        self._apply(GroupFinished(group.position, group.attempt, oldest, tokens))
        if self._drains and self._generators.idle:
            self._drains = False
            self._refit()

    def _trained(self) -> None:
        batch = self._batch
        assert batch is not None
        groups = [self._groups.pop(position) for position in batch.positions]
        trained, stale = self._measure.trained(groups, batch.step - 1, batch.mask_before)
        if not self._plan.in_flight_updates:
            self._pause()
        self._apply(
            StepTrained(
                batch.step,
                dict.fromkeys(batch.positions, Outcome.TRAINED),
                {TokenCategory.TRAINED: trained, TokenCategory.STALE: stale},
            )
        )
        if self._plan.in_flight_updates or self._generators.idle:
            self._refit()
        else:
            self._drains = True

    def _refit(self) -> None:
        self._generators.stand(True)
        self._occupy(self._workload.costs.refit_s, self._published)

    def _published(self) -> None:
        self._generators.stand(False)
        version = self._versions.publish(self._generators.decoded)
        period = self._workload.costs.validation_period
        validates = period is not None and version % period == 0
        if validates:
            # Before the publication, or the next step would begin with it.
            self._pause()
            self._occupy(self._workload.costs.validation_s, self._step_over)
        self._apply(VersionPublished(version))
        if not validates:
            self._step_over()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._apply(Paused())

    def _step_over(self) -> None:
        self._measure.steps += 1
        if self._paused:
            self._paused = False
            self._apply(Resumed())


def _settings(workload: Workload, plan: Plan) -> SchedulerSettings:
    return SchedulerSettings(
        prompts_per_step=workload.prompts_per_step,
        max_age=plan.max_age,
        in_flight_batches=plan.in_flight_batches,
        on_age_limit=plan.on_age_limit,
        max_expiries=workload.max_expiries,
        max_generation_failures=0,
        max_attempts=1,
        max_gen_batches=None,
        # No prompt ends an epoch, so nothing depends on the size of a data set.
        rows_per_epoch=1_000_000_000,
        total_positions=None,
        max_steps=None,
    )
