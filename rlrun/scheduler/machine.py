# SPDX-License-Identifier: Apache-2.0
"""The scheduler: a pure state machine. Events in, decisions out; no clock, no threads, no chance.

An event first changes the books (stream, pool, ledger); then the machine advances as far as it
can: it ends the run, begins a step, admits prompts, in this order. A step's slots are freed by the
publication of its weights, not by its training, which is what keeps an age bound of 0 on-policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from rlrun.interfaces import Batching
from rlrun.scheduler import events as ev
from rlrun.scheduler.books import Books
from rlrun.scheduler.decisions import Admit, Cancel, CancelReason, Decision, Finish
from rlrun.scheduler.events import Event, TokenCategory
from rlrun.scheduler.forming import form_batch
from rlrun.scheduler.frontier import Frontier
from rlrun.scheduler.intake import Intake, identity
from rlrun.scheduler.pool import Running
from rlrun.scheduler.settings import SchedulerSettings


class Waiting(StrEnum):
    """What the trainer waits for."""

    NOTHING = "nothing"
    """A batch trains."""
    REFIT = "refit"
    PAUSE = "pause"
    GROUPS = "groups"
    """Too few groups are ready."""
    AGE_LIMIT = "age_limit"
    """Enough groups are ready, but running ones would pass the age bound."""
    END = "end"
    """The run has not started or is over."""


class Scheduler:
    """Decides admission, batches, retries, expiry and the end of a run.

    Args:
        settings: Sizes and limits.
        batching: The policy that ranks finished groups.
    """

    def __init__(self, settings: SchedulerSettings, batching: Batching) -> None:
        """Makes a scheduler whose first event is ``started_event()``."""
        self._init(
            Books(settings, Frontier(settings.rows_per_epoch, settings.total_positions)), batching
        )

    def _init(self, books: Books, batching: Batching) -> None:
        self._books = books
        self._batching = batching
        self._intake = Intake(books, batching)
        self._decisions: list[Decision] = []

    def apply(self, event: Event) -> tuple[Decision, ...]:
        """Takes in one event and says what is to be done, in order.

        Raises:
            ValueError: The event contradicts what happened before (a bug of the driver). The
                state is then unchanged.
            ConfigError: A user's batching policy returned something else than a ranking.
        """
        failure = self._intake.take(event)
        self._decisions = [] if failure is None else [failure]
        if not self._books.at.ended:
            self._advance()
        return tuple(self._decisions)

    def state(self) -> dict[str, Any]:
        """JSON-able state; its size depends on what is outstanding, not on the run's length."""
        return self._books.state()

    @classmethod
    def restore(
        cls, settings: SchedulerSettings, batching: Batching, state: Mapping[str, Any]
    ) -> Self:
        """A scheduler that goes on exactly where ``state()`` was taken.

        After a restart of the process, apply ``restored_event`` first.

        Raises:
            ValueError: The state has another form.
        """
        scheduler = cls.__new__(cls)
        scheduler._init(Books.restore(settings, state), batching)
        return scheduler

    def started_event(self) -> ev.Started:
        """The first event of a new run."""
        return ev.Started(self._books.settings, identity(self._batching))

    def restored_event(self, lost_tokens: int) -> ev.Restored:
        """The first event after a restart.

        Args:
            lost_tokens: Tokens generated after the checkpoint (``replay.lost_tokens``).
        """
        return ev.Restored(
            self._books.settings, identity(self._batching), self._books.at.trained, lost_tokens
        )

    @property
    def seq(self) -> int:
        """Number of the last event, from 0; -1 before the first. A line of events.jsonl has it."""
        return self._books.at.seq

    @property
    def version(self) -> int:
        """Weight version in use."""
        return self._books.at.version

    @property
    def ended(self) -> bool:
        """Whether Finish or Fail was decided."""
        return self._books.at.ended

    @property
    def prompts_per_step(self) -> int:
        """Groups that a step trains."""
        return self._books.settings.prompts_per_step

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Positions that generate, the longest admitted first."""
        return tuple(self._books.pool.running)

    @property
    def held(self) -> tuple[int, ...]:
        """Finished positions whose groups a checkpoint must hold: ready or in training."""
        return (*self._books.training, *self._books.pool.ready)

    @property
    def waiting(self) -> Waiting:
        """What the trainer waits for."""
        books = self._books
        if books.training:
            return Waiting.NOTHING
        if books.at.ended or not books.at.started:
            return Waiting.END
        if books.at.unpublished:
            return Waiting.REFIT
        if books.at.paused:
            return Waiting.PAUSE
        held = books.at.held_step == books.next_step
        return Waiting.AGE_LIMIT if held else Waiting.GROUPS

    def ledger(self) -> dict[str, int]:
        """Cumulative tokens: "generated" and the categories that it is the sum of."""
        return self._books.ledger.counts()

    def outcomes(self) -> dict[str, int]:
        """Prompts that ended, by outcome, over all epochs."""
        return self._books.frontier.outcomes()

    def counters(self) -> dict[str, int]:
        """Values of the declared metrics that count groups."""
        return {
            "buffer/groups": len(self._books.pool.ready),
            "buffer/expired_groups": self._books.at.expired_groups,
            "rollout/failed_groups": self._books.at.failed_groups,
        }

    def _advance(self) -> None:
        books, at, pool = self._books, self._books.at, self._books.pool
        if not books.training:
            if at.trained >= books.last_step:
                stopped = at.stop_after is not None and at.trained >= at.stop_after
                self._finish(at.stop_reason if stopped else "max_steps")
                return
            if not pool.ready and not pool.running and books.frontier.exhausted:
                self._finish("data_end")
                return
            if pool.ready and not (pool.excess or at.paused or at.unpublished):
                form_batch(books, self._batching, self._decisions)
        if not at.paused:
            self._admit()

    def _finish(self, reason: str) -> None:
        books = self._books
        for position, running in tuple(books.pool.running.items()):
            self._decisions.append(Cancel(position, running.attempt, CancelReason.FINISHED))
            books.stop_running(position, None, TokenCategory.CANCELLED)
            books.frontier.give_back(position)
        books.at.ended = True
        self._decisions.append(Finish(reason))

    def _admit(self) -> None:
        books, pool = self._books, self._books.pool
        room = books.room
        if room <= 0:
            return
        settings, version = books.settings, books.at.version
        assigns_targets = self._batching.assigns_targets
        take, decide = books.frontier.take, self._decisions.append
        for _ in range(room):
            taken = take()
            if taken is None:
                return
            position, attempt = taken
            target = None
            if assigns_targets:
                target = pool.open_target(books.next_step, settings.prompts_per_step)
            may_expire = books.expires and books.frontier.expiries(position) < settings.max_expiries
            pool.start(position, Running(attempt, version, target, may_expire))
            decide(Admit(position, attempt, target))
