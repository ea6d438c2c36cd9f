# SPDX-License-Identifier: Apache-2.0
"""How each event changes the books. Nothing is decided here but that the run has failed."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from rlrun.interfaces import Batching, ReadyGroup
from rlrun.scheduler import events as ev
from rlrun.scheduler.books import Books
from rlrun.scheduler.decisions import Fail
from rlrun.scheduler.events import Event, Outcome, TokenCategory, Verdict
from rlrun.scheduler.forming import ready_for_next
from rlrun.scheduler.ledger import AFTER_TRAINING
from rlrun.scheduler.pool import Running
from rlrun.scheduler.settings import SchedulerSettings

DROPPED = {
    Verdict.NO_SIGNAL: (Outcome.NO_SIGNAL, TokenCategory.ZERO_SIGNAL),
    Verdict.FILTERED: (Outcome.FILTERED, TokenCategory.FILTERED),
}
"""Outcome and token category of a group that is dropped before training."""


Report = ev.TokensGenerated | ev.GroupFinished | ev.GroupFailed | ev.GroupCancelled
"""Events about one attempt."""


class Intake:
    """Takes events into the books.

    Every handler checks first and changes afterwards, so that a refused event leaves no trace.

    Args:
        books: What is changed.
        batching: The policy of the run.
    """

    def __init__(self, books: Books, batching: Batching) -> None:
        """Binds the handlers."""
        self._books = books
        self._batching = batching
        self._handlers: dict[type[Event], Callable[[Any], Fail | None]] = {
            ev.Started: self._on_started,
            ev.Restored: self._on_restored,
            ev.TokensGenerated: self._on_tokens,
            ev.GroupFinished: self._on_finished,
            ev.GroupFailed: self._on_failed,
            ev.GroupCancelled: self._on_cancelled,
            ev.EnginesLost: self._on_engines_lost,
            ev.StepTrained: self._on_trained,
            ev.VersionPublished: self._on_published,
            ev.Paused: self._on_paused,
            ev.Resumed: self._on_resumed,
            ev.Stop: self._on_stop,
        }

    def take(self, event: Event) -> Fail | None:
        """Takes in an event; the failure of the run if a limit was passed with it.

        Raises:
            ValueError: The event contradicts what happened before; nothing was changed.
        """
        if not self._books.at.started and type(event) is not ev.Started:
            raise ValueError(f"{type(event).__name__} before Started")
        failure = self._handlers[type(event)](event)
        self._books.at.seq += 1
        return failure

    def _on_started(self, event: ev.Started) -> None:
        if self._books.at.started:
            raise ValueError("Started twice")
        self._check_identity(event.settings, event.batching)
        self._books.at.started = True

    def _on_restored(self, event: ev.Restored) -> None:
        books, at = self._books, self._books.at
        self._check_identity(event.settings, event.batching)
        if event.version != at.trained:
            raise ValueError(f"restored at version {event.version} after {at.trained} steps")
        for position in tuple(books.pool.running):
            books.pool.stop(position)
            books.frontier.give_back(position)
        books.ledger.lose_in_flight()
        books.ledger.add(TokenCategory.LOST, event.lost_tokens)
        books.ledger.forget_all()
        for group in books.training.values():
            books.pool.put(group)
        books.pool.sort_ready()
        books.training = {}
        at.version, at.unpublished = at.trained, 0
        at.paused = at.ended = False
        at.stop_after, at.stop_reason = None, ""
        books.limit_steps()
        at.failures, at.first_error, at.held_step = 0, "", None

    def _on_tokens(self, event: ev.TokensGenerated) -> None:
        running = self._running(event)
        if running is not None:
            self._books.ledger.add(TokenCategory.IN_FLIGHT, event.tokens - running.tokens)
            running.tokens = event.tokens

    def _on_finished(self, event: ev.GroupFinished) -> Fail | None:
        running = self._running(event)
        if running is None:
            return None
        books, at, position = self._books, self._books.at, event.position
        oldest = running.version if event.oldest_version is None else event.oldest_version
        # During a refit the generator may be ahead of what is published.
        if not running.version <= oldest <= at.version + (at.unpublished > 0):
            raise ValueError(
                f"group {position}, admitted at version {running.version}, finished at version "
                f"{at.version} with oldest version {oldest}"
            )
        pool = books.pool
        dropped = DROPPED.get(event.verdict)
        pool.stop(position, finished=dropped is None)
        at.failures, at.first_error = 0, ""
        if dropped is None:
            books.ledger.finish(running.tokens, event.tokens)
            pool.put(
                ReadyGroup(
                    position,
                    oldest,
                    running.version,
                    at.finish_order,
                    running.target_step,
                    event.attempt,
                    event.tokens,
                ),
                finished=True,
            )
            at.finish_order += 1
        else:
            outcome, category = dropped
            books.ledger.end_running(running.tokens, event.tokens, category)
            books.end_prompts({position: outcome})
        limit = books.settings.max_gen_batches
        if limit is None:
            return None
        # A group with a target was generated for that step and no other.
        for_next = running.target_step in (None, books.next_step)
        return self._bound_sampling(limit, dropped is not None and for_next)

    def _on_failed(self, event: ev.GroupFailed) -> Fail | None:
        books, position = self._books, event.position
        if self._running(event) is None:
            return None
        books.stop_running(position, event.tokens, TokenCategory.ERRORED)
        books.at.failed_groups += 1
        if books.frontier.failures(position) + 1 >= books.settings.max_attempts:
            books.end_prompts({position: Outcome.FAILED})
        else:
            books.frontier.redo(position, failures=1)
        return self._count_failure(event.error)

    def _on_cancelled(self, event: ev.GroupCancelled) -> None:
        if self._running(event) is not None:
            self._books.stop_running(event.position, event.tokens, TokenCategory.CANCELLED)
            self._books.frontier.redo(event.position)

    def _on_engines_lost(self, event: ev.EnginesLost) -> Fail | None:
        books = self._books
        for position in event.positions:
            if position in books.pool.running:
                books.stop_running(position, None, TokenCategory.ERRORED)
                books.frontier.redo(position)
                books.at.failed_groups += 1
        return self._count_failure(event.error)

    def _on_trained(self, event: ev.StepTrained) -> None:
        books, at = self._books, self._books.at
        if not books.training or event.step != at.trained + 1:
            raise ValueError(f"step {event.step} was trained but is not in training")
        if event.outcomes.keys() != books.training.keys():
            raise ValueError(f"step {event.step}: outcomes do not match its batch")
        if Outcome.FAILED in event.outcomes.values():
            raise ValueError(f"step {event.step}: a trained group cannot have failed")
        if not AFTER_TRAINING >= event.tokens.keys() or min(event.tokens.values(), default=0) < 0:
            raise ValueError(f"step {event.step}: illegal token counts {dict(event.tokens)}")
        tokens = sum(map(attrgetter("tokens"), books.training.values()))
        if sum(event.tokens.values()) != tokens:
            raise ValueError(f"step {event.step}: {dict(event.tokens)} do not add up to {tokens}")
        books.end_prompts(event.outcomes)
        books.ledger.take_buffered(event.tokens)
        at.trained = event.step
        at.unpublished, books.training = len(books.training), {}

    def _on_published(self, event: ev.VersionPublished) -> None:
        at = self._books.at
        if not at.unpublished or event.version != at.trained:
            raise ValueError(f"version {event.version} published after {at.trained} steps")
        at.version, at.unpublished = event.version, 0

    def _on_paused(self, event: ev.Paused) -> None:
        if self._books.at.paused:
            raise ValueError("Paused twice")
        self._books.at.paused = True

    def _on_resumed(self, event: ev.Resumed) -> None:
        if not self._books.at.paused:
            raise ValueError("Resumed without a pause")
        self._books.at.paused = False

    def _on_stop(self, event: ev.Stop) -> None:
        books = self._books
        busy = bool(books.training) or (event.finish_step and books.pool.outstanding > 0)
        last = books.at.trained + busy
        if books.at.stop_after is None or last < books.at.stop_after:
            books.at.stop_after, books.at.stop_reason = last, event.reason
            books.limit_steps()

    def _check_identity(self, settings: SchedulerSettings, batching: str) -> None:
        if settings != self._books.settings or batching != identity(self._batching):
            raise ValueError("the event names other settings than the scheduler was made with")

    def _running(self, event: Report) -> Running | None:
        """The running attempt that a report is about; None if it comes late and only counts."""
        running = self._books.pool.running.get(event.position)
        if running is None or running.attempt != event.attempt:
            self._count_late(event)
            return None
        if event.tokens < running.tokens:
            raise ValueError(
                f"group {event.position} had {running.tokens} tokens, now {event.tokens}"
            )
        return running

    def _count_late(self, event: Report) -> None:
        books, position, attempt = self._books, event.position, event.attempt
        if position >= books.frontier.next_position:
            raise ValueError(f"group {position} was never admitted")
        finished = books.training.get(position) or books.pool.ready.get(position)
        if finished is not None and finished.attempt == attempt:
            raise ValueError(f"group {position}, attempt {attempt}, was reported twice")
        last = not isinstance(event, ev.TokensGenerated)
        books.ledger.late(position, attempt, event.tokens, last=last)

    def _count_failure(self, error: str) -> Fail | None:
        at, limit = self._books.at, self._books.settings.max_generation_failures
        at.failures += 1
        at.first_error = at.first_error or error
        if at.failures <= limit:
            return None
        return self._fail(
            f"{at.failures} generation failures since the last success "
            f"(max_generation_failures={limit})",
            at.first_error,
        )

    def _bound_sampling(self, limit: int, dropped: bool) -> Fail | None:
        books, size = self._books, self._books.settings.prompts_per_step
        ready = ready_for_next(books, self._batching)
        if ready >= size:
            return None
        books.at.dropped += dropped
        generated = books.at.dropped + ready
        if generated <= limit * size:
            return None
        return self._fail(
            f"step {books.next_step}: {generated} groups were generated and only {ready} of "
            f"the {size} that it needs are left (dynamic_sampling_max_gen_batches={limit})",
            "",
        )

    def _fail(self, reason: str, error: str) -> Fail | None:
        if self._books.at.ended:
            return None
        self._books.at.ended = True
        return Fail(reason, error)


def identity(batching: Batching) -> str:
    """Names a batching policy: "module:class(settings)"."""
    return f"{type(batching).__module__}:{batching!r}"
