# SPDX-License-Identifier: Apache-2.0
"""Runs rollouts beside the trainer: decisions of the scheduler out, their results back in."""

from __future__ import annotations

import asyncio
import logging
import time
from types import TracebackType

from rlrun.collector import Collector, InFlight
from rlrun.console.activity import Activity, Oldest
from rlrun.console.terminal import visible
from rlrun.errors import GenerationError
from rlrun.grpo.decisions import Decisions
from rlrun.grpo.watchdog import dump
from rlrun.metrics.timeline import Lane
from rlrun.rollout.group_end import agent_name
from rlrun.scheduler.events import Event
from rlrun.scheduler.machine import Waiting

log = logging.getLogger(__name__)

SETTLE_S = 10.0
"""Time for groups that are given up at the end of a run to say how many tokens they had."""


class Rollouts:
    """A context in which whatever the scheduler admits is rolled out, also during training.

    Args:
        decisions: The scheduler and what it decided.
        collector: Runs the groups.
        no_progress_timeout_s: Waiting fails after so long without any news; None waits for ever.
    """

    def __init__(
        self, decisions: Decisions, collector: Collector, no_progress_timeout_s: float | None
    ) -> None:
        self.decisions, self.collector = decisions, collector
        self.no_progress_timeout_s = no_progress_timeout_s
        self.timeline = collector.rollout.timeline
        self.waited: dict[str, float] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Rollouts:
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)
        await self.collector.close()
        if self.decisions.ended is not None:
            # Nothing follows from these any more, but their tokens belong into the books.
            for event in self.collector.take_events():
                self.decisions.apply(event)

    def apply(self, event: Event) -> None:
        """Tells the scheduler what the trainer did, and carries out what it says."""
        self.decisions.apply(event)
        self.carry_out()

    def carry_out(self) -> None:
        """Starts and cancels rollouts as decided."""
        for cancel in self.decisions.take_cancels():
            self.collector.cancel(cancel)
        self.collector.start(self.decisions.take_admits())

    async def news(self) -> None:
        """Waits until some group has ended; notes what the trainer waited for.

        Raises:
            GenerationError: Nothing happened for too long.
        """
        waiting, started = self.decisions.scheduler.waiting, time.monotonic()
        cause = "waiting_groups" if waiting is Waiting.GROUPS else waiting.value
        with self.timeline.busy(Lane.TRAINER, f"wait/{cause}"):
            is_there = await self._wait(self.no_progress_timeout_s)
        self.waited[cause] = self.waited.get(cause, 0.0) + time.monotonic() - started
        if self._listener.done():
            self._listener.result()
        if not is_there:
            raise self._stuck()

    async def settle(self) -> None:
        """At the end of a run: waits, not for long, for what given up groups had sampled."""
        deadline = time.monotonic() + SETTLE_S
        while not self.collector.settled and not self._listener.done():
            left = deadline - time.monotonic()
            if left <= 0:
                log.info("groups that were given up have not ended within %g s", SETTLE_S)
                return
            await self._wait(left)

    @property
    def _listener(self) -> asyncio.Task[None]:
        assert self._task is not None, "rollouts go on within the context only"
        return self._task

    async def _wait(self, timeout_s: float | None) -> bool:
        """Waits for news or for the end of the listener; False if neither came in time."""
        news = asyncio.ensure_future(self._news.wait())
        try:
            done, _ = await asyncio.wait(
                [news, self._listener], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            news.cancel()
        if done:
            self._news.clear()
        return bool(done)

    def activity(self) -> Activity:
        """What goes on at the moment. May be asked by another thread: it reads counts only."""
        scheduler, oldest = self.decisions.scheduler, self.collector.oldest
        doing, seconds = self.timeline.doing(Lane.TRAINER)
        return Activity(
            doing=doing,
            seconds=seconds,
            running=self.collector.running,
            ready=scheduler.counters()["buffer/groups"],
            needed=scheduler.prompts_per_step,
            oldest=None if oldest is None else self._oldest(oldest),
        )

    def _oldest(self, call: InFlight) -> Oldest:
        prompt = call.prompts[0]
        environment = agent_name(prompt.row.payload) or self.timeline.environment
        seconds = time.monotonic() - call.started
        return Oldest(visible(prompt.prompt_id), visible(environment), seconds)

    def take_waited(self) -> dict[str, float]:
        """Seconds waited since it was last asked, by what for."""
        waited, self.waited = self.waited, {}
        return waited

    async def _listen(self) -> None:
        while True:
            for event in await self.collector.events():
                self.decisions.apply(event)
            self.carry_out()
            self._news.set()

    def _stuck(self) -> GenerationError:
        """What to say, and to log, when nothing happens any more."""
        scheduler, oldest = self.decisions.scheduler, self.collector.oldest
        what = f"no rollout has ended for {self.no_progress_timeout_s:g} s; the trainer waits for "
        what += f"{scheduler.waiting.value}"
        if oldest is not None:
            prompt = oldest.prompts[0]
            seconds = time.monotonic() - oldest.started
            what += f"; the oldest running one is prompt {prompt.prompt_id}, since {seconds:.0f} s"
        else:
            what += "; nothing is running"
        dump(scheduler)
        return GenerationError(
            "grpo.no_progress_timeout_s",
            what,
            "State and stacks are in log.txt; raise the limit if rollouts may take that long",
        )
