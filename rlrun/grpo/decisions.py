# SPDX-License-Identifier: Apache-2.0
"""The scheduler together with its event log and the decisions that are still to be carried out."""

from __future__ import annotations

import logging

from rlrun.errors import EnvironmentDown, GenerationError, RlrunError
from rlrun.run_dir.event_log import EventLog
from rlrun.scheduler.decisions import Admit, Cancel, Decision, Fail, Finish, Hold, Train
from rlrun.scheduler.events import Event
from rlrun.scheduler.machine import Scheduler
from rlrun.types import FailureKind

log = logging.getLogger(__name__)


class Decisions:
    """Applies events, logs them, and hands out each decision once.

    Attributes:
        ended: Finish or Fail once the scheduler has ended the run.
    """

    def __init__(self, scheduler: Scheduler, event_log: EventLog) -> None:
        self.scheduler, self.event_log = scheduler, event_log
        self.ended: Finish | Fail | None = None
        self._admits: list[Admit] = []
        self._cancels: list[Cancel] = []
        self._train: Train | None = None

    def apply(self, event: Event) -> None:
        """Feeds an event to the scheduler and keeps what it decides."""
        decisions = self.scheduler.apply(event)
        self.event_log.append(self.scheduler.seq, event, decisions)
        for decision in decisions:
            self._keep(decision)

    def take_admits(self) -> list[Admit]:
        """Prompts to start, oldest decision first."""
        admits, self._admits = self._admits, []
        return admits

    def take_cancels(self) -> list[Cancel]:
        """Groups to give up, oldest decision first."""
        cancels, self._cancels = self._cancels, []
        return cancels

    def take_train(self) -> Train | None:
        """The step to train, if one can begin."""
        train, self._train = self._train, None
        return train

    def _keep(self, decision: Decision) -> None:
        match decision:
            case Admit():
                self._admits.append(decision)
            case Train():
                self._train = decision
            case Finish() | Fail():
                self.ended = decision
                self._admits.clear()
            case Cancel():
                before = len(self._admits)
                named = (decision.position, decision.attempt)
                self._admits = [a for a in self._admits if (a.position, a.attempt) != named]
                if len(self._admits) == before:
                    self._cancels.append(decision)
            case Hold():
                names = ", ".join(map(str, decision.waiting[:8]))
                log.info("step %d waits for positions %s at the age limit", decision.step, names)
            case _:
                raise AssertionError(f"unknown decision {decision}")


def error_of(fail: Fail) -> RlrunError:
    """The error that a run ends with when its scheduler gives up."""
    cause = f" The original error: {fail.error}" * bool(fail.error)
    kind = EnvironmentDown if fail.error.startswith(FailureKind.ENV_DOWN) else GenerationError
    remedy = ""
    if fail.error.startswith((FailureKind.REWARD_ERROR, FailureKind.ENV_ERROR)):
        remedy = "Correct the environment or reward function; rlrun check tries it with two answers"
    elif "dynamic_sampling_max_gen_batches" in fail.reason:
        remedy = (
            "Groups whose rewards are all equal are left out: take prompts that are sometimes "
            "solved, raise grpo.dynamic_sampling_max_gen_batches, or set "
            "grpo.use_dynamic_sampling=false"
        )
    return kind("rollout", fail.reason + "." + cause, remedy)
