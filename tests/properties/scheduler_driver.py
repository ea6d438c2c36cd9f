# SPDX-License-Identifier: Apache-2.0
"""Drives the scheduler through arbitrary schedules and checks every decision against own books."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rlrun.batching.fifo import Fifo
from rlrun.batching.freshest import Freshest
from rlrun.batching.in_order import InOrder
from rlrun.interfaces import Batching
from rlrun.scheduler import (
    Admit,
    Cancel,
    CancelReason,
    Decision,
    EnginesLost,
    Event,
    Fail,
    Finish,
    GroupCancelled,
    GroupFailed,
    GroupFinished,
    Hold,
    OnAgeLimit,
    Outcome,
    Paused,
    Replay,
    Resumed,
    Scheduler,
    SchedulerSettings,
    StepTrained,
    Stop,
    TokenCategory,
    TokensGenerated,
    Train,
    Verdict,
    VersionPublished,
    lost_tokens,
)

Pick = Callable[[int], int]
"""pick(n) is a number in 0 .. n - 1."""

VERDICTS = (*[Verdict.KEEP] * 8, Verdict.NO_SIGNAL, Verdict.FILTERED)
POLICIES: tuple[type[Batching], ...] = (Fifo, Freshest, InOrder)


def any_settings(pick: Pick) -> SchedulerSettings:
    """Small settings of every kind."""
    age = pick(5)
    rows = 1 + pick(12)
    return SchedulerSettings(
        prompts_per_step=1 + pick(4),
        max_age=age,
        in_flight_batches=1 + pick(max(1, age)),
        on_age_limit=tuple(OnAgeLimit)[pick(3)],
        max_expiries=pick(3),
        max_generation_failures=(1000, 1000, 1)[pick(3)],
        max_attempts=1 + pick(3),
        max_gen_batches=(None, None, 3)[pick(3)],
        rows_per_epoch=rows,
        total_positions=rows * (1 + pick(3)),
        max_steps=(None, None, 1 + pick(6))[pick(3)],
    )


@dataclass
class Group:
    """A group as the driver knows it."""

    attempt: int
    version: int
    target: int | None
    tokens: int = 0
    finished: int = -1


@dataclass
class Books:
    """The driver's own account of a run."""

    running: dict[int, Group] = field(default_factory=dict)
    ready: dict[int, Group] = field(default_factory=dict)
    training: dict[int, Group] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    dropped: Counter[int | None] = field(default_factory=Counter)
    expiries: dict[int, int] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    step: int = 0
    version: int = 0
    unpublished: int = 0
    handed_out: int = 0
    streak: int = 0
    paused: bool = False
    stopping: bool = False
    shifted: bool = False


class Run:
    """One run under arbitrary events; every method that acts checks what it provokes."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.settings = any_settings(pick)
        self.batching = POLICIES[pick(3)]()
        self.has_tail = pick(2) == 1
        self.scheduler = Scheduler(self.settings, self.batching)
        self.twin: Scheduler | None = None
        self.books = Books()
        self.generated = 0
        self.late: list[tuple[int, int, int, bool]] = []
        self.log: list[tuple[Event, tuple[Decision, ...]]] = []
        self.ended: Finish | Fail | None = None
        self.saved: tuple[int, str, Books] | None = None
        self.do(self.scheduler.started_event())

    # --- events -----------------------------------------------------------------------------------

    def do(self, event: Event) -> None:
        """Applies an event, compares a restored twin, and checks all that must hold now."""
        decisions = self.scheduler.apply(event)
        self.log.append((event, decisions))
        assert self.scheduler.seq == len(self.log) - 1
        if self.twin is not None:
            assert self.twin.apply(event) == decisions
        for decision in decisions:
            self.obey(decision)
        self.check_limits()
        self.check_ledger()

    def act(self) -> None:
        """One arbitrary event."""
        books = self.books
        actions: list[Callable[[], None]] = []
        if books.running:
            actions += [self.finish] * 8 + [self.fail, self.lose_engine, self.report_progress]
            actions += [self.cancel_oneself]
        if books.training:
            actions += [self.train] * 3
        if books.unpublished:
            actions += [self.publish] * 3
        if self.late:
            actions += [self.report_late]
        actions += [self.unpause] * 3 if books.paused else [self.pause]
        actions += [self.save, self.make_twin]
        if self.saved is not None:
            actions += [self.crash]
        if self.pick(40) == 0:
            actions = [self.stop]
        actions[self.pick(len(actions))]()

    def any_running(self) -> tuple[int, Group]:
        positions = list(self.books.running)
        if self.has_tail and self.pick(8):
            # The newest go on: the oldest become the slow ones.
            positions = positions[-2:]
        position = positions[self.pick(len(positions))]
        return position, self.books.running[position]

    def end_attempt(self, position: int) -> Group:
        group = self.books.running.pop(position)
        tokens = group.tokens + self.pick(5)
        self.generated += tokens - group.tokens
        group.tokens = tokens
        return group

    def finish(self) -> None:
        books = self.books
        position, _ = self.any_running()
        group = self.end_attempt(position)
        verdict = VERDICTS[self.pick(len(VERDICTS))]
        newest = books.version + (1 if books.unpublished else 0)
        oldest = group.version + self.pick(newest - group.version + 1)
        attempt = group.attempt
        books.streak = 0
        if verdict is Verdict.KEEP:
            group.version, group.finished = oldest, len(self.log)
            books.ready[position] = group
        else:
            books.dropped[group.target] += 1
            self.end_prompt(position, Outcome(verdict.value))
        self.do(GroupFinished(position, attempt, oldest, group.tokens, verdict))

    def fail(self) -> None:
        books = self.books
        position, _ = self.any_running()
        group = self.end_attempt(position)
        books.failures[position] = books.failures.get(position, 0) + 1
        self.late.append((position, group.attempt, group.tokens, False))
        if books.failures[position] >= self.settings.max_attempts:
            self.end_prompt(position, Outcome.FAILED)
        else:
            self.redo(position)
        books.streak += 1
        self.do(GroupFailed(position, group.attempt, f"boom {position}", group.tokens))

    def lose_engine(self) -> None:
        books = self.books
        chosen = [position for position in books.running if self.pick(2)]
        for position in chosen:
            group = books.running.pop(position)
            self.late.append((position, group.attempt, group.tokens, False))
            self.redo(position)
        books.streak += 1
        self.do(EnginesLost(tuple(chosen), "engine 0 died"))

    def cancel_oneself(self) -> None:
        position, _ = self.any_running()
        group = self.end_attempt(position)
        self.redo(position)
        self.do(GroupCancelled(position, group.attempt, group.tokens))

    def report_progress(self) -> None:
        position, group = self.any_running()
        new = self.pick(4)
        group.tokens += new
        self.generated += new
        self.do(TokensGenerated(position, group.attempt, group.tokens))

    def report_late(self) -> None:
        position, attempt, tokens, _ = self.late.pop(self.pick(len(self.late)))
        new = self.pick(4)
        self.generated += new
        before = self.scheduler.ledger()["cancelled"]
        kind = self.pick(3)
        if kind == 0:
            self.do(GroupFinished(position, attempt, 0, tokens + new))
        elif kind == 1:
            self.do(GroupFailed(position, attempt, "too late", tokens + new))
        else:
            self.do(GroupCancelled(position, attempt, tokens + new))
        assert self.scheduler.ledger()["cancelled"] == before + new

    def train(self) -> None:
        books = self.books
        batch, books.training = books.training, {}
        outcomes = (Outcome.TRAINED, Outcome.TRAINED, Outcome.NO_SIGNAL, Outcome.FILTERED)
        ended = {position: outcomes[self.pick(4)] for position in batch}
        total = sum(group.tokens for group in batch.values())
        part = self.pick(total + 1)
        for position, outcome in ended.items():
            self.end_prompt(position, outcome)
        books.step += 1
        books.unpublished = len(batch)
        tokens = {TokenCategory.TRAINED: part, TokenCategory.STALE: total - part}
        self.do(StepTrained(books.step, ended, tokens))

    def publish(self) -> None:
        self.books.unpublished = 0
        self.books.version = self.books.step
        self.do(VersionPublished(self.books.step))

    def pause(self) -> None:
        self.books.paused = True
        self.do(Paused())

    def unpause(self) -> None:
        self.books.paused = False
        self.do(Resumed())

    def stop(self) -> None:
        self.books.stopping = True
        self.do(Stop("SIGTERM", finish_step=bool(self.pick(2))))

    def save(self) -> None:
        state = json.dumps(self.scheduler.state())
        self.saved = len(self.log), state, copy.deepcopy(self.books)

    def make_twin(self) -> None:
        state = json.loads(json.dumps(self.scheduler.state()))
        self.twin = Scheduler.restore(self.settings, self.batching, state)
        assert self.twin.state() == state

    def crash(self) -> None:
        """Kills the process and goes on from the last save."""
        assert self.saved is not None
        length, text, books = self.saved
        state = json.loads(text)
        lost = lost_tokens(state, [event for event, _ in self.log[length:]])
        del self.log[length:]
        self.books = copy.deepcopy(books)
        self.restart(Scheduler.restore(self.settings, self.batching, state), lost)

    def resume_after_end(self) -> None:
        """Goes on from the state in which the run ended, without a step limit."""
        state = json.loads(json.dumps(self.scheduler.state()))
        self.settings = replace(self.settings, max_steps=None, max_gen_batches=None)
        self.restart(Scheduler.restore(self.settings, self.batching, state), 0)

    def restart(self, scheduler: Scheduler, lost: int) -> None:
        books = self.books
        self.scheduler, self.twin, self.ended, self.saved = scheduler, None, None, None
        self.late = []
        books.again |= books.running.keys()
        books.ready |= books.training
        books.running, books.training = {}, {}
        books.version, books.unpublished = books.step, 0
        books.paused = books.stopping = False
        books.streak = 0
        self.do(scheduler.restored_event(lost))
        assert self.scheduler.ledger()["in_flight"] == 0

    # --- decisions --------------------------------------------------------------------------------

    def obey(self, decision: Decision) -> None:
        assert self.ended is None
        match decision:
            case Admit():
                self.admitted(decision)
            case Train():
                self.train_decided(decision)
            case Cancel():
                self.cancelled(decision)
            case Hold(step, waiting):
                assert self.settings.on_age_limit is not OnAgeLimit.MASK
                assert step == self.books.step + 1
                assert waiting and set(waiting) <= self.books.running.keys()
            case Fail():
                self.ended = decision
                too_many = self.books.streak > self.settings.max_generation_failures
                assert too_many == ("max_generation_failures" in decision.reason)
                assert too_many or self.spent_on_step() > 0
            case Finish():
                self.ended = decision
                assert not self.books.training and not self.books.running
                if decision.reason == "data_end":
                    assert not self.books.ready and not self.books.again

    def spent_on_step(self) -> int:
        """Groups generated for the next step beyond the bound on dynamic sampling, at most."""
        books, limit = self.books, self.settings.max_gen_batches
        assert limit is not None
        step = books.step + 1 + bool(books.training)
        ready, dropped = len(books.ready), books.dropped.total()
        if self.batching.assigns_targets and not books.shifted:
            ready = sum(group.target == step for group in books.ready.values())
            dropped = books.dropped[step]
        return ready + dropped - limit * self.settings.prompts_per_step

    def admitted(self, admit: Admit) -> None:
        books, position = self.books, admit.position
        assert not books.paused
        assert position not in books.outcomes
        for held in (books.running, books.ready, books.training):
            assert position not in held
        if books.again:
            assert position == min(books.again)
            books.again.remove(position)
        else:
            assert position == books.handed_out
            books.handed_out += 1
        assert admit.attempt == books.attempts.get(position, 0)
        assert (admit.target_step is not None) == self.batching.assigns_targets
        books.running[position] = Group(admit.attempt, books.version, admit.target_step)

    def train_decided(self, train: Train) -> None:
        books, settings = self.books, self.settings
        assert not books.paused and not books.training and not books.unpublished
        assert train.step == books.step + 1 == books.version + 1
        assert list(train.positions) == sorted(train.positions)
        batch = {position: books.ready.pop(position) for position in train.positions}
        assert train.oldest_versions == tuple(group.version for group in batch.values())
        assert 0 < len(batch) <= settings.prompts_per_step
        if len(batch) < settings.prompts_per_step:
            assert not books.running and not books.ready and not books.again
            assert books.handed_out == settings.total_positions
        floor = books.version - settings.max_age
        if min(train.oldest_versions) < floor:
            assert settings.on_age_limit is OnAgeLimit.MASK
            assert train.mask_before == floor
        else:
            assert train.mask_before is None
        assert train.age_max <= settings.max_age
        self.note_shifts()
        if self.batching.assigns_targets and not books.shifted:
            assert all(group.target == train.step for group in batch.values())
        else:
            books.dropped.clear()
        books.training = batch

    def cancelled(self, cancel: Cancel) -> None:
        books, position = self.books, cancel.position
        if cancel.reason is CancelReason.FINISHED:
            group = books.running.pop(position)
            books.again.add(position)
        else:
            assert self.settings.on_age_limit is OnAgeLimit.EXPIRE
            group = books.running.pop(position)
            self.redo(position)
            books.expiries[position] = books.expiries.get(position, 0) + 1
            assert books.expiries[position] <= self.settings.max_expiries
        assert group.attempt == cancel.attempt
        self.late.append((position, cancel.attempt, group.tokens, True))

    # --- books ------------------------------------------------------------------------------------

    def note_shifts(self) -> None:
        """Targets may be shifted once no prompt may be left for a hole, or steps are cut off."""
        books = self.books
        used_up = books.handed_out == self.settings.total_positions
        if used_up or self.settings.max_steps is not None or books.stopping:
            books.shifted = True

    def redo(self, position: int) -> None:
        self.books.again.add(position)
        self.books.attempts[position] = self.books.attempts.get(position, 0) + 1

    def end_prompt(self, position: int, outcome: Outcome) -> None:
        assert position not in self.books.outcomes, "a prompt ended twice"
        self.books.outcomes[position] = outcome
        rows = self.settings.rows_per_epoch
        epoch = range(position // rows * rows, position // rows * rows + rows)
        if all(other in self.books.outcomes for other in epoch):
            # What is not owed is forgotten with the epoch; a real driver sends no such report.
            self.late = [late for late in self.late if late[0] not in epoch or late[3]]

    def check_limits(self) -> None:
        self.note_shifts()
        books, settings = self.books, self.settings
        per_step = settings.prompts_per_step
        assert len(books.running) <= settings.in_flight_batches * per_step
        held = len(books.running) + len(books.ready) + len(books.training) + books.unpublished
        limit = min(settings.in_flight_batches, settings.max_age) * per_step + per_step
        assert held <= limit
        assert self.scheduler.in_flight == tuple(books.running)
        assert set(self.scheduler.held) == books.ready.keys() | books.training.keys()
        finished = [books.ready[p].finished for p in self.scheduler.held if p in books.ready]
        assert finished == sorted(finished)
        if self.ended is None and not books.paused and not books.stopping:
            self.check_nothing_idle(held, limit)

    def check_nothing_idle(self, held: int, limit: int) -> None:
        """Capacity is used: a free slot stays free only without prompts or steps for it."""
        books, settings = self.books, self.settings
        full = len(books.running) == settings.max_in_flight or held == limit
        used_up = not books.again and books.handed_out == settings.total_positions
        assert full or used_up or settings.max_steps is not None

    def check_ledger(self) -> None:
        tokens, books = self.scheduler.ledger(), self.books
        assert tokens["generated"] == self.generated
        assert 2 * self.generated == sum(tokens.values())
        assert tokens["in_flight"] == sum(group.tokens for group in books.running.values())
        buffered = (*books.ready.values(), *books.training.values())
        assert tokens["buffered"] == sum(group.tokens for group in buffered)
        assert min(tokens.values()) >= 0

    # --- whole runs -------------------------------------------------------------------------------

    def drain(self) -> None:
        """Lets everything finish; fails if the run does not end in bounded time."""
        for _ in range(40 * (2 + (self.settings.total_positions or 0))):
            if self.ended is not None:
                return
            books = self.books
            if books.paused:
                self.unpause()
            elif books.training:
                self.train()
            elif books.unpublished:
                self.publish()
            else:
                assert books.running, "dead-lock: nothing runs, nothing trains, no end"
                self.finish()
        raise AssertionError("the run does not end")

    def play(self, events: int) -> None:
        """A run with some arbitrary events, then to the very end over all resumes."""
        for _ in range(events):
            if self.ended is not None:
                break
            self.act()
        self.drain()
        while not (isinstance(self.ended, Finish) and self.ended.reason == "data_end"):
            self.resume_after_end()
            self.drain()
        self.check_end()

    def check_end(self) -> None:
        total = self.settings.total_positions
        assert total is not None
        while self.late:
            self.report_late()
        assert self.books.outcomes.keys() == set(range(total))
        counts = {outcome.value: 0 for outcome in Outcome}
        for outcome in self.books.outcomes.values():
            counts[outcome.value] += 1
        assert self.scheduler.outcomes() == counts
        state = self.scheduler.state()
        assert state["frontier"]["open_epochs"] == [] and state["ledger"]["ended"] == []
        replay = Replay(self.batching)
        for event, decisions in self.log:
            assert replay.apply(event) == decisions
