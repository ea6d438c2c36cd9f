# SPDX-License-Identifier: Apache-2.0
"""Settings and a small driver for tests that tell a story event by event."""

from __future__ import annotations

from typing import Any

from rlrun.batching.fifo import Fifo
from rlrun.interfaces import Batching
from rlrun.scheduler import (
    Admit,
    Decision,
    Event,
    GroupFinished,
    OnAgeLimit,
    Outcome,
    Scheduler,
    SchedulerSettings,
    StepTrained,
    TokenCategory,
    Train,
    Verdict,
    VersionPublished,
    Waiting,
)


def settings(**changes: Any) -> SchedulerSettings:
    """A synchronous run of two prompts a step over a large epoch, with changes."""
    values: dict[str, Any] = {
        "prompts_per_step": 2,
        "max_age": 0,
        "in_flight_batches": 1,
        "on_age_limit": OnAgeLimit.HOLD,
        "max_expiries": 2,
        "max_generation_failures": 2,
        "max_attempts": 2,
        "max_gen_batches": None,
        "rows_per_epoch": 100,
        "total_positions": None,
        "max_steps": None,
    }
    return SchedulerSettings(**{**values, **changes})


class Story:
    """Applies events and remembers which attempts run and which batch trains."""

    def __init__(self, batching: Batching | None = None, **changes: Any) -> None:
        self.batching = batching or Fifo()
        self.settings = settings(**changes)
        self.scheduler = Scheduler(self.settings, self.batching)
        self.attempts: dict[int, int] = {}
        self.batch: Train | None = None
        self.batches: list[tuple[int, ...]] = []
        self.first = self.apply(self.scheduler.started_event())

    def apply(self, event: Event) -> tuple[Decision, ...]:
        """Applies an event."""
        decisions = self.scheduler.apply(event)
        for decision in decisions:
            if isinstance(decision, Admit):
                self.attempts[decision.position] = decision.attempt
            elif isinstance(decision, Train):
                self.batch = decision
                self.batches.append(decision.positions)
        return decisions

    def finish(
        self, *positions: int, verdict: Verdict = Verdict.KEEP, oldest: int | None = None
    ) -> tuple[Decision, ...]:
        """Groups finish with 10 tokens each; the decisions of all."""
        found: tuple[Decision, ...] = ()
        for position in positions:
            attempt = self.attempts[position]
            found += self.apply(GroupFinished(position, attempt, oldest, 10, verdict))
        return found

    def train(self) -> tuple[Decision, ...]:
        """The batch was trained, all of it with signal."""
        assert self.batch is not None
        batch, self.batch = self.batch, None
        outcomes = dict.fromkeys(batch.positions, Outcome.TRAINED)
        tokens = {TokenCategory.TRAINED: 10 * len(outcomes)}
        return self.apply(StepTrained(batch.step, outcomes, tokens))

    def step(self) -> tuple[Decision, ...]:
        """The batch was trained and the new weights are in use."""
        found = self.train()
        return found + self.apply(VersionPublished(self.scheduler.version + 1))

    def waiting(self) -> Waiting:
        """What the trainer waits for."""
        return self.scheduler.waiting

    def restart(self, state: dict[str, Any] | None = None, **changes: Any) -> tuple[Decision, ...]:
        """The process starts again from a state (that of now), with changed settings."""
        state = self.scheduler.state() if state is None else state
        self.settings = settings(**changes)
        self.scheduler = Scheduler.restore(self.settings, self.batching, state)
        self.attempts, self.batch = {}, None
        return self.apply(self.scheduler.restored_event(0))


def admitted(decisions: tuple[Decision, ...]) -> list[int]:
    """Positions that are to be generated."""
    return [decision.position for decision in decisions if isinstance(decision, Admit)]
