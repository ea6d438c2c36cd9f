# SPDX-License-Identifier: Apache-2.0
"""The state of a scheduled run: stream, pool, ledger and the counters between them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from rlrun.interfaces import ReadyGroup
from rlrun.scheduler.events import Outcome, TokenCategory
from rlrun.scheduler.frontier import Frontier
from rlrun.scheduler.ledger import Ledger
from rlrun.scheduler.pool import Pool, group_state, restore_group
from rlrun.scheduler.settings import OnAgeLimit, SchedulerSettings

FORMAT = 1
"""Version of the state's form."""

NO_LIMIT = sys.maxsize
"""Stands for a last step that is not known."""


@dataclass(slots=True)
class Progress:
    """Where the run is.

    Attributes:
        seq: Number of the last event; -1 before the first.
        started: Whether the run began.
        paused: Whether admission and new steps are paused.
        ended: Whether Finish or Fail was decided.
        version: Weight version that is in use.
        trained: Completed steps.
        unpublished: Slots of a trained step whose weights are not in use yet.
        stop_after: Last step if a stop was requested.
        stop_reason: Why.
        failures: Generation failures since the last success.
        first_error: Error of the first of them.
        dropped: Groups dropped while the next step was being filled.
        held_step: The step that a Hold was decided for.
        finish_order: Groups that became ready so far.
        expired_groups: Groups that were expired.
        failed_groups: Attempts that failed, engine losses included.
    """

    seq: int = -1
    started: bool = False
    paused: bool = False
    ended: bool = False
    version: int = 0
    trained: int = 0
    unpublished: int = 0
    stop_after: int | None = None
    stop_reason: str = ""
    failures: int = 0
    first_error: str = ""
    dropped: int = 0
    held_step: int | None = None
    finish_order: int = 0
    expired_groups: int = 0
    failed_groups: int = 0


@dataclass(slots=True)
class Books:
    """Everything that a decision may depend on.

    Attributes:
        settings: See SchedulerSettings.
        frontier: The prompt stream.
        pool: Groups that generate or are ready.
        ledger: Tokens.
        at: Where the run is.
        training: The batch that trains, by position in stream order; empty if none does.
        last_step: The step after which the run ends; NO_LIMIT if it is not known.
        masks: Whether tokens past the bound are masked.
        expires: Whether running groups that would pass the bound are cancelled.
    """

    settings: SchedulerSettings
    frontier: Frontier
    pool: Pool = field(default_factory=Pool)
    ledger: Ledger = field(default_factory=Ledger)
    at: Progress = field(default_factory=Progress)
    training: dict[int, ReadyGroup] = field(default_factory=dict)
    last_step: int = field(init=False)
    masks: bool = field(init=False)
    expires: bool = field(init=False)
    _max_in_flight: int = field(init=False)
    _max_outstanding: int = field(init=False)

    def __post_init__(self) -> None:
        """Derives the limits once: they are asked for at every event."""
        self._max_in_flight = self.settings.max_in_flight
        self._max_outstanding = self.settings.max_outstanding
        self.masks = self.settings.on_age_limit is OnAgeLimit.MASK
        self.expires = self.settings.on_age_limit is OnAgeLimit.EXPIRE
        self.limit_steps()

    def limit_steps(self) -> None:
        """Derives the last step from the settings and from a stop that was requested."""
        limits = (self.settings.max_steps, self.at.stop_after)
        self.last_step = min((limit for limit in limits if limit is not None), default=NO_LIMIT)

    @property
    def next_step(self) -> int:
        """The next step whose batch is to be formed."""
        return self.at.trained + 1 + bool(self.training)

    @property
    def room(self) -> int:
        """How many prompts may be admitted now."""
        running = len(self.pool.running)
        outstanding = running + len(self.pool.ready)
        room = self._max_outstanding - outstanding - len(self.training) - self.at.unpublished
        if room > self._max_in_flight - running:
            room = self._max_in_flight - running
        if room > 0 and self.last_step < NO_LIMIT:
            # What no step is left for would only be thrown away.
            steps = self.last_step - self.next_step + 1
            room = min(room, steps * self.settings.prompts_per_step - outstanding)
        return room

    @property
    def all_arrived(self) -> bool:
        """Whether no further group can become ready: the next batch may be short."""
        return not self.pool.running and self.frontier.exhausted

    def end_prompts(self, outcomes: Mapping[int, Outcome]) -> None:
        """Prompts ended, by position."""
        rows = self.settings.rows_per_epoch
        for epoch in self.frontier.end(outcomes):
            self.ledger.forget(epoch * rows, (epoch + 1) * rows)

    def stop_running(self, position: int, tokens: int | None, category: TokenCategory) -> None:
        """A running attempt ended without a result.

        Args:
            position: Its place in the stream.
            tokens: What it sampled, or None for what it reported so far.
            category: What becomes of its tokens.
        """
        running = self.pool.stop(position)
        total = running.tokens if tokens is None else tokens
        self.ledger.end_running(running.tokens, total, category)
        owed = tokens is None and category is TokenCategory.CANCELLED
        self.ledger.remember(position, running.attempt, total, owed=owed)

    def state(self) -> dict[str, Any]:
        """JSON-able state; its size depends on what is outstanding, not on the run's length."""
        return {
            "format": FORMAT,
            "at": asdict(self.at),
            "frontier": self.frontier.state(),
            "pool": self.pool.state(),
            "training": [group_state(group) for group in self.training.values()],
            "ledger": self.ledger.state(),
        }

    @classmethod
    def restore(cls, settings: SchedulerSettings, state: Mapping[str, Any]) -> Self:
        """Inverse of ``state``.

        Raises:
            ValueError: The state has another form.
        """
        if state["format"] != FORMAT:
            raise ValueError(f"scheduler state of format {state['format']}, not {FORMAT}")
        pool = Pool.restore(state["pool"])
        training = [restore_group(group) for group in state["training"]]
        return cls(
            settings,
            Frontier.restore(state["frontier"], settings.rows_per_epoch, settings.total_positions),
            pool,
            Ledger.restore(state["ledger"]),
            Progress(**state["at"]),
            {group.position: group for group in training},
        )
