# SPDX-License-Identifier: Apache-2.0
"""Runs the rollouts that the scheduler admits, and reports how each group ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlrun.errors import GenerationError, GenerationTimeout
from rlrun.interfaces import Abandoned
from rlrun.prompts import PromptStream
from rlrun.replay_buffer import ReplayBuffer
from rlrun.rollout import Job, RolloutRunner
from rlrun.rollout.deadlines import Deadline
from rlrun.rollout.group_end import GroupEnd, agent_name, judge, shares, span_of
from rlrun.scheduler.decisions import Admit, Cancel, CancelReason
from rlrun.scheduler.events import (
    EnginesLost,
    Event,
    GroupCancelled,
    GroupFailed,
    GroupFinished,
    TokensGenerated,
    Verdict,
)
from rlrun.types import Prompt, TrajectoryGroup

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Most seconds between two looks for groups that are past their deadline."""


@dataclass(slots=True, eq=False)
class InFlight:
    """A call that is being rolled out.

    Attributes:
        admits: Its groups.
        prompts: Theirs, in the same order.
        started: By ``time.monotonic``.
        overdue: The limit in seconds that it was cancelled for having passed, or None.
    """

    admits: tuple[Admit, ...]
    prompts: tuple[Prompt, ...]
    started: float
    overdue: float | None = None


class Collector:
    """Runs groups beside everything else; finished ones go to the buffer.

    Args:
        rollout: With the sampling of training.
        stream: Where positions get their prompts.
        buffer: Where finished groups wait until they are trained.
        num_samples: Trajectories per group.
        scored_needed: How many of them must have a reward for the group to be of use.
        lacks_signal: Dynamic sampling: which groups are not trained; None trains all.
        deadline: How long a group may take; asked anew at every look.
    """

    def __init__(
        self,
        rollout: RolloutRunner,
        stream: PromptStream,
        buffer: ReplayBuffer,
        *,
        num_samples: int,
        scored_needed: int,
        lacks_signal: Callable[[TrajectoryGroup], bool] | None,
        deadline: Deadline,
    ) -> None:
        self.rollout, self.stream, self.buffer = rollout, stream, buffer
        self.num_samples, self.scored_needed = num_samples, scored_needed
        self.lacks_signal = lacks_signal
        self.deadline = deadline
        self.dropped: list[TrajectoryGroup] = []
        self.expired: list[int] = []
        self._expiring: set[tuple[int, int]] = set()
        self._in_flight: dict[asyncio.Task[list[GroupEnd]], InFlight] = {}
        self._tasks: dict[tuple[int, int], asyncio.Task[list[GroupEnd]]] = {}
        self._next_look: asyncio.TimerHandle | None = None
        self._events: list[Event] = []
        self._lost: list[TokensGenerated] = []
        self._arrived = asyncio.Event()
        self._error: BaseException | None = None
        self._busy_s, self._busy_since, self._tokens = 0.0, 0.0, 0

    def start(self, admits: Sequence[Admit]) -> None:
        """Begins with admitted groups; a lockstep generator gets them as one call."""
        calls = [[admit] for admit in admits]
        if self.rollout.lockstep and admits:
            calls = [list(admits)]
        for call in calls:
            if not self._in_flight:
                self._busy_since = time.monotonic()
            prompts = tuple(self.stream.prompt_at(admit.position) for admit in call)
            in_flight = InFlight(tuple(call), prompts, time.monotonic())
            task = asyncio.create_task(self._call(in_flight))
            self._in_flight[task] = in_flight
            for admit in call:
                self._tasks[admit.position, admit.attempt] = task
            task.add_done_callback(self._done)
        if self._in_flight and self._next_look is None:
            self._look()

    def cancel(self, cancel: Cancel) -> None:
        """Gives a group up, running or finished; a running one still reports its tokens."""
        named = cancel.position, cancel.attempt
        task, expires = self._tasks.get(named), cancel.reason is CancelReason.EXPIRED
        if task is not None:
            if expires:
                self._expiring.add(named)
            task.cancel()
            return
        group = self.buffer.get(cancel.position)
        if expires and group is not None:
            self.expired.append(group.num_sampled)
        self.buffer.discard(cancel.position)
        self.rollout.timeline.discarded(cancel.position)

    async def events(self) -> list[Event]:
        """What became of groups since it was last asked; waits for at least one.

        Raises:
            BaseException: What a rollout raised that says nothing about its group (a bug).
        """
        await self._arrived.wait()
        self._arrived.clear()
        if self._error is not None:
            raise self._error
        return self.take_events()

    def take_events(self) -> list[Event]:
        """As ``events``, without waiting: there may be none."""
        events, self._events = self._events, []
        return events

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight and everything was reported."""
        return not (self._in_flight or self._lost or self._events)

    async def close(self) -> None:
        """Ends everything that is in flight; ``take_events`` then says how."""
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # What is called when a task is done is called after those who wait for it.
        while self._in_flight or self._lost:
            await asyncio.sleep(0)

    def take_dropped(self) -> list[TrajectoryGroup]:
        """Hands out the groups without signal that were dropped since it was last asked."""
        dropped, self.dropped = self.dropped, []
        return dropped

    def take_expired(self) -> list[int]:
        """Sampled tokens of each group that was given up for its age since it was last asked."""
        expired, self.expired = self.expired, []
        return expired

    def take_tokens(self) -> int:
        """Tokens of the groups that ended since it was last asked."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    @property
    def oldest(self) -> InFlight | None:
        """The call that is in flight for the longest time."""
        return min(list(self._in_flight.values()), key=lambda call: call.started, default=None)

    @property
    def running(self) -> int:
        """Groups that are in flight. May be asked by another thread, as may ``oldest``."""
        return sum(len(call.admits) for call in list(self._in_flight.values()))

    @property
    def busy_seconds(self) -> float:
        """Time so far in which at least one group was in flight."""
        return self._busy_s + (time.monotonic() - self._busy_since if self._in_flight else 0.0)

    def _done(self, task: asyncio.Task[list[GroupEnd]]) -> None:
        call = self._in_flight.pop(task)
        for admit in call.admits:
            del self._tasks[admit.position, admit.attempt]
        if not self._in_flight:
            self._busy_s += time.monotonic() - self._busy_since
            if self._next_look is not None:
                self._next_look.cancel()
                self._next_look = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._error = error
        else:
            self._note(call, task.result())
            self._events += task.result()
            self._tokens += sum(event.tokens for event in task.result())
            self._note_expired(task.result())
            if any(isinstance(event, GroupFinished) for event in task.result()):
                self.deadline.took(time.monotonic() - call.started)
        if self._events or self._error is not None:
            self._arrived.set()

    def _look(self) -> None:
        """Cancels the calls that take too long, and comes again.

        The limit is the present one and not that of the time when a call started: there may have
        been none, or one of the few groups that had finished then, which are the short ones.
        """
        limit, now, wait = self.deadline.limit_s, time.monotonic(), LOOK_S
        if limit is not None:
            for task, call in self._in_flight.items():
                left = call.started + limit - now
                if left > 0:
                    # The others started later.
                    wait = min(wait, left)
                    break
                if call.overdue is None:
                    call.overdue = limit
                    task.cancel()
        self._next_look = asyncio.get_running_loop().call_later(wait, self._look)

    async def _call(self, in_flight: InFlight) -> list[GroupEnd]:
        call = in_flight.admits
        jobs = [
            Job(prompt, self.num_samples, admit.attempt)
            for admit, prompt in zip(call, in_flight.prompts, strict=True)
        ]
        over = [self.rollout.passes_over(job.prompt) for job in jobs]
        if all(over):
            log.info("%s: %s", ", ".join(job.prompt.prompt_id for job in jobs), over[0])
            return [
                GroupFinished(admit.position, admit.attempt, None, 0, Verdict.FILTERED)
                for admit in call
            ]
        try:
            groups = await self.rollout.run(jobs)
        except GenerationTimeout as error:
            log.warning("%s", error)
            ends = tuple(zip(call, shares(error.tokens, len(call)), strict=True))
            text = f"timeout: {error}"
            return [GroupFailed(a.position, a.attempt, text, tokens) for a, tokens in ends]
        except GenerationError as error:
            log.warning("%s", error)
            self._lose(call, error)
            return []
        except asyncio.CancelledError as error:
            sampled = error.tokens if isinstance(error, Abandoned) else 0
            ends = tuple(zip(call, shares(sampled, len(call)), strict=True))
            if in_flight.overdue is None:
                return [GroupCancelled(a.position, a.attempt, tokens) for a, tokens in ends]
            text = f"timeout: no result within {in_flight.overdue:.3g} s"
            log.warning("%s: %s", ", ".join(job.prompt.prompt_id for job in jobs), text)
            return [GroupFailed(a.position, a.attempt, text, tokens) for a, tokens in ends]
        return [self._keep(admit, group) for admit, group in zip(call, groups, strict=True)]

    def _keep(self, admit: Admit, group: TrajectoryGroup) -> GroupEnd:
        """Puts a group where it belongs; one of no use is not kept."""
        end = judge(admit, group, self.scored_needed, self.lacks_signal)
        if isinstance(end, GroupFinished):
            if end.verdict is Verdict.NO_SIGNAL:
                self.dropped.append(group)
            else:
                self.buffer.put(group)
        return end

    def _note(self, call: InFlight, ends: Sequence[GroupEnd]) -> None:
        """Enters the ends of a call's groups into the timeline."""
        timeline, now = self.rollout.timeline, time.monotonic()
        prompts = {prompt.position: prompt for prompt in call.prompts}
        for end in ends:
            group = None
            if isinstance(end, GroupFinished):
                is_dropped = end.verdict is Verdict.NO_SIGNAL
                find = self._dropped_at if is_dropped else self.buffer.get
                group = find(end.position)
            prompt = prompts[end.position]
            environment = agent_name(prompt.row.payload) or timeline.environment
            timeline.ended(span_of(end, group, prompt, environment, call.started, now))

    def _note_expired(self, ends: Sequence[GroupEnd]) -> None:
        """Keeps what the groups among them had that were called off for their age."""
        for end in ends:
            named = end.position, end.attempt
            if named in self._expiring:
                self._expiring.remove(named)
                self.expired.append(end.tokens)

    def _dropped_at(self, position: int) -> TrajectoryGroup | None:
        """The group without signal of a position, until it is handed out."""
        return next((g for g in self.dropped if g.prompt.position == position), None)

    def _lose(self, call: Sequence[Admit], error: GenerationError) -> None:
        """An engine takes all its calls with it; that is one failure and not one for each."""
        if not self._lost:
            asyncio.get_running_loop().call_soon(self._report_lost, str(error))
        for admit, tokens in zip(call, shares(error.tokens, len(call)), strict=True):
            self._lost.append(TokensGenerated(admit.position, admit.attempt, tokens))

    def _report_lost(self, error: str) -> None:
        lost, self._lost = self._lost, []
        self._events += [event for event in lost if event.tokens]
        self._events.append(EnginesLost(tuple(event.position for event in lost), error))
        self._arrived.set()
