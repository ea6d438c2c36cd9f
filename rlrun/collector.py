# SPDX-License-Identifier: Apache-2.0
"""Rolls out what the scheduler admits and says what became of each group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rlrun.advantage.group import zero_variance
from rlrun.errors import GenerationError
from rlrun.prompts import PromptStream
from rlrun.rollout import Job, Rollout
from rlrun.scheduler.decisions import Admit
from rlrun.scheduler.events import EnginesLost, Event, GroupFailed, GroupFinished, Verdict
from rlrun.types import TrajectoryGroup

log = logging.getLogger(__name__)


class Collector:
    """Keeps finished groups by stream position until they are trained.

    Args:
        rollout: With the sampling of training.
        stream: Where positions get their prompts.
        num_samples: Trajectories per group.
        drop_without_signal: Dynamic sampling: groups of constant reward are not trained.
    """

    def __init__(
        self,
        rollout: Rollout,
        stream: PromptStream,
        *,
        num_samples: int,
        drop_without_signal: bool,
    ) -> None:
        self.rollout, self.stream = rollout, stream
        self.num_samples, self.drop_without_signal = num_samples, drop_without_signal
        self.finished: dict[int, TrajectoryGroup] = {}
        self.dropped: list[TrajectoryGroup] = []

    async def run(self, admits: Sequence[Admit]) -> list[Event]:
        """Events for all admitted groups, in the order of their admission."""
        jobs = [
            Job(self.stream.prompt_at(admit.position), self.num_samples, admit.attempt)
            for admit in admits
        ]
        calls = [list(zip(admits, jobs, strict=True))]
        if not self.rollout.generator.lockstep:
            calls = [[pair] for pair in calls[0]]
        results = await asyncio.gather(*(self._call(call) for call in calls))
        return [event for events in results for event in events]

    def take(self, positions: Sequence[int]) -> list[TrajectoryGroup]:
        """Hands out the groups of a batch."""
        return [self.finished.pop(position) for position in positions]

    def take_dropped(self) -> list[TrajectoryGroup]:
        """Hands out the groups without signal that were dropped since it was last asked."""
        dropped, self.dropped = self.dropped, []
        return dropped

    async def _call(self, call: Sequence[tuple[Admit, Job]]) -> list[Event]:
        try:
            groups = await self.rollout.run([job for _, job in call])
        except GenerationError as error:
            log.warning("%s", error)
            return [EnginesLost(tuple(admit.position for admit, _ in call), str(error))]
        return [self._judge(admit, group) for (admit, _), group in zip(call, groups, strict=True)]

    def _judge(self, admit: Admit, group: TrajectoryGroup) -> Event:
        """A group needs at least two scored samples (one, if there is only one) to be of use."""
        failures = [t.failure for t in group.trajectories if t.failure is not None]
        scored = len(group.trajectories) - len(failures)
        if failures:
            log.warning(
                "prompt %s: %d of %d samples failed, the first by %s: %s",
                group.prompt.prompt_id,
                len(failures),
                len(group.trajectories),
                failures[0].kind,
                failures[0].message,
            )
        if scored < min(2, self.num_samples):
            error = f"{failures[0].kind}: {failures[0].message}"
            return GroupFailed(admit.position, admit.attempt, error, group.num_sampled)
        verdict = Verdict.KEEP
        if self.drop_without_signal and zero_variance([t.reward for t in group.trajectories]):
            verdict = Verdict.NO_SIGNAL
            self.dropped.append(group)
        else:
            self.finished[admit.position] = group
        return GroupFinished(
            admit.position, admit.attempt, group.oldest_version, group.num_sampled, verdict
        )
