# SPDX-License-Identifier: Apache-2.0
"""Keeps the rollouts going that the scheduler admits, and says what became of each group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.advantage.group import zero_variance
from rlrun.deadlines import Deadline
from rlrun.errors import GenerationError
from rlrun.interfaces import Abandoned
from rlrun.prompts import PromptStream
from rlrun.replay_buffer import ReplayBuffer
from rlrun.rollout import Job, RolloutRunner
from rlrun.scheduler.decisions import Admit, Cancel
from rlrun.scheduler.events import (
    EnginesLost,
    Event,
    GroupCancelled,
    GroupFailed,
    GroupFinished,
    Verdict,
)
from rlrun.types import TrajectoryGroup

log = logging.getLogger(__name__)

Report = GroupFinished | GroupFailed | GroupCancelled
"""How an attempt at a group ended."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A call that is being rolled out.

    Attributes:
        admits: Its groups.
        started: By ``time.monotonic``.
    """

    admits: tuple[Admit, ...]
    started: float


class Collector:
    """Runs groups beside everything else; finished ones go to the buffer.

    Args:
        rollout: With the sampling of training.
        stream: Where positions get their prompts.
        buffer: Where finished groups wait until they are trained.
        num_samples: Trajectories per group.
        scored_needed: Of them, that must have a reward for the group to be of use.
        drop_without_signal: Dynamic sampling: groups of constant reward are not trained.
        deadline: How long a group may take.
    """

    def __init__(
        self,
        rollout: RolloutRunner,
        stream: PromptStream,
        buffer: ReplayBuffer,
        *,
        num_samples: int,
        scored_needed: int,
        drop_without_signal: bool,
        deadline: Deadline,
    ) -> None:
        self.rollout, self.stream, self.buffer = rollout, stream, buffer
        self.num_samples, self.scored_needed = num_samples, scored_needed
        self.drop_without_signal = drop_without_signal
        self.deadline = deadline
        self.dropped: list[TrajectoryGroup] = []
        self._in_flight: dict[asyncio.Task[list[Report]], InFlight] = {}
        self._events: list[Event] = []
        self._lost: list[EnginesLost] = []
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
            task = asyncio.create_task(self._call(call))
            self._in_flight[task] = InFlight(tuple(call), time.monotonic())
            task.add_done_callback(self._done)

    def cancel(self, cancel: Cancel) -> None:
        """Gives a group up, running or finished; a running one still reports its tokens."""
        named = (cancel.position, cancel.attempt)
        for task, call in self._in_flight.items():
            if named in [(admit.position, admit.attempt) for admit in call.admits]:
                task.cancel()
                return
        self.buffer.discard(cancel.position)

    async def events(self) -> list[Event]:
        """What became of groups since it was last asked; waits for at least one.

        Raises:
            BaseException: What a rollout raised that says nothing about its group (a bug).
        """
        await self._arrived.wait()
        self._arrived.clear()
        if self._error is not None:
            raise self._error
        events, self._events = self._events, []
        return events

    async def close(self) -> None:
        """Ends everything that is in flight, unreported."""
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def take_dropped(self) -> list[TrajectoryGroup]:
        """Hands out the groups without signal that were dropped since it was last asked."""
        dropped, self.dropped = self.dropped, []
        return dropped

    def take_tokens(self) -> int:
        """Tokens of the groups that ended since it was last asked."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    @property
    def oldest(self) -> InFlight | None:
        """The call that is in flight for the longest time."""
        return min(self._in_flight.values(), key=lambda call: call.started, default=None)

    @property
    def busy_seconds(self) -> float:
        """Time so far in which at least one group was in flight."""
        return self._busy_s + (time.monotonic() - self._busy_since if self._in_flight else 0.0)

    def _done(self, task: asyncio.Task[list[Report]]) -> None:
        call = self._in_flight.pop(task)
        if not self._in_flight:
            self._busy_s += time.monotonic() - self._busy_since
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._error = error
        else:
            self._events += task.result()
            self._tokens += sum(event.tokens for event in task.result())
            if any(isinstance(event, GroupFinished) for event in task.result()):
                self.deadline.took(time.monotonic() - call.started)
        if self._events or self._error is not None:
            self._arrived.set()

    async def _call(self, call: Sequence[Admit]) -> list[Report]:
        jobs = [
            Job(self.stream.prompt_at(admit.position), self.num_samples, admit.attempt)
            for admit in call
        ]
        over = [self.rollout.passes_over(job.prompt) for job in jobs]
        if all(over):
            log.info("%s: %s", ", ".join(job.prompt.prompt_id for job in jobs), over[0])
            return [
                GroupFinished(admit.position, admit.attempt, None, 0, Verdict.FILTERED)
                for admit in call
            ]
        limit = self.deadline.limit_s
        timeout = asyncio.timeout(limit)
        try:
            async with timeout:
                groups = await self.rollout.run(jobs)
        except GenerationError as error:
            log.warning("%s", error)
            self._lose(EnginesLost(tuple(admit.position for admit in call), str(error)))
            return []
        except (TimeoutError, Abandoned) as error:
            cause = error if isinstance(error, Abandoned) else error.__cause__
            # The tokens of a call are told apart by group only where it has one.
            tokens = cause.tokens if isinstance(cause, Abandoned) and len(call) == 1 else 0
            if not timeout.expired():
                return [GroupCancelled(admit.position, admit.attempt, tokens) for admit in call]
            text = f"timeout: no result within {limit:.3g} s"
            log.warning("%s: %s", ", ".join(job.prompt.prompt_id for job in jobs), text)
            return [GroupFailed(admit.position, admit.attempt, text, tokens) for admit in call]
        return [self._judge(admit, group) for admit, group in zip(call, groups, strict=True)]

    def _lose(self, event: EnginesLost) -> None:
        """An engine takes all its calls with it; that is one failure and not one for each."""
        if not self._lost:
            asyncio.get_running_loop().call_soon(self._report_lost)
        self._lost.append(event)

    def _report_lost(self) -> None:
        lost, self._lost = self._lost, []
        positions = tuple(position for event in lost for position in event.positions)
        self._events.append(EnginesLost(positions, lost[0].error))
        self._arrived.set()

    def _judge(self, admit: Admit, group: TrajectoryGroup) -> Report:
        """A group with too few scored samples is of no use."""
        failures = [t.failure for t in group.trajectories if t.failure is not None]
        scored = sum(t.failure is None and not t.flagged for t in group.trajectories)
        if failures:
            log.warning(
                "prompt %s: %d of %d samples failed, the first by %s: %s",
                group.prompt.prompt_id,
                len(failures),
                len(group.trajectories),
                failures[0].kind,
                failures[0].message,
            )
        if scored < self.scored_needed:
            error = "all samples are flagged by the environment"
            if failures:
                error = f"{failures[0].kind}: {failures[0].message}"
            return GroupFailed(admit.position, admit.attempt, error, group.num_sampled)
        verdict = Verdict.KEEP
        if self.drop_without_signal and zero_variance(
            [t.reward for t in group.trajectories if not t.flagged]
        ):
            verdict = Verdict.NO_SIGNAL
            self.dropped.append(group)
        else:
            self.buffer.put(group)
        return GroupFinished(
            admit.position, admit.attempt, group.oldest_version, group.num_sampled, verdict
        )
