# SPDX-License-Identifier: Apache-2.0
"""The scheduler: admission, ages, batches, retries, expiry and the end of a run.

A pure state machine (``machine.Scheduler``): the trainers, the simulator and the tests drive the
same object with events and carry out its decisions.
"""

from rlrun.scheduler.decisions import (
    Admit,
    Cancel,
    CancelReason,
    Decision,
    Fail,
    Finish,
    Hold,
    Train,
    decision_from_json,
)
from rlrun.scheduler.events import (
    EnginesLost,
    Event,
    GroupCancelled,
    GroupFailed,
    GroupFinished,
    Outcome,
    Paused,
    Restored,
    Resumed,
    Started,
    StepTrained,
    Stop,
    TokenCategory,
    TokensGenerated,
    Verdict,
    VersionPublished,
    event_from_json,
)
from rlrun.scheduler.machine import Scheduler, Waiting
from rlrun.scheduler.replay import Replay, lost_tokens
from rlrun.scheduler.settings import OnAgeLimit, SchedulerSettings

__all__ = [
    "Admit",
    "Cancel",
    "CancelReason",
    "Decision",
    "EnginesLost",
    "Event",
    "Fail",
    "Finish",
    "GroupCancelled",
    "GroupFailed",
    "GroupFinished",
    "Hold",
    "OnAgeLimit",
    "Outcome",
    "Paused",
    "Replay",
    "Restored",
    "Resumed",
    "Scheduler",
    "SchedulerSettings",
    "Started",
    "StepTrained",
    "Stop",
    "TokenCategory",
    "TokensGenerated",
    "Train",
    "Verdict",
    "VersionPublished",
    "Waiting",
    "decision_from_json",
    "event_from_json",
    "lost_tokens",
]
