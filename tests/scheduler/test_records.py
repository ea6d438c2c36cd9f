# SPDX-License-Identifier: Apache-2.0
"""Events, decisions and settings survive JSON."""

from __future__ import annotations

import json

import pytest

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
    Restored,
    Resumed,
    SchedulerSettings,
    Started,
    StepTrained,
    Stop,
    TokenCategory,
    TokensGenerated,
    Train,
    Verdict,
    VersionPublished,
    decision_from_json,
    event_from_json,
)
from rlrun.scheduler.decisions import DECISIONS
from rlrun.scheduler.events import EVENTS
from tests.scheduler.scheduler_cases import settings

ALL_EVENTS: list[Event] = [
    Started(settings(max_age=3, on_age_limit=OnAgeLimit.MASK), "rlrun.batching.fifo:Fifo()"),
    Restored(settings(), "a", 7, 123),
    TokensGenerated(3, 1, 44),
    GroupFinished(3, 1, None, 44, Verdict.FILTERED),
    GroupFailed(3, 1, 'quote " and\nline', 0),
    GroupCancelled(3, 1, 9),
    EnginesLost((3, 4), "died"),
    StepTrained(
        2,
        {3: Outcome.TRAINED, 4: Outcome.NO_SIGNAL},
        {TokenCategory.TRAINED: 5, TokenCategory.STALE: 1},
    ),
    VersionPublished(2),
    Paused(),
    Resumed(),
    Stop("SIGTERM", finish_step=True),
]
ALL_DECISIONS: list[Decision] = [
    Admit(3, 1, 4),
    Train(2, (3, 4), (0, 1), 1),
    Cancel(3, 1, CancelReason.EXPIRED),
    Hold(2, (3, 4)),
    Fail("too many", "boom"),
    Finish("data_end"),
]


def test_every_kind_is_covered_here() -> None:
    assert {type(event) for event in ALL_EVENTS} == set(EVENTS.values())
    assert {type(decision) for decision in ALL_DECISIONS} == set(DECISIONS.values())


@pytest.mark.parametrize("event", ALL_EVENTS, ids=lambda event: type(event).__name__)
def test_event_survives_json(event: Event) -> None:
    back = event_from_json(json.loads(json.dumps(event.to_json())))
    assert back == event
    assert type(back) is type(event)


@pytest.mark.parametrize("decision", ALL_DECISIONS, ids=lambda decision: type(decision).__name__)
def test_decision_survives_json(decision: Decision) -> None:
    back = decision_from_json(json.loads(json.dumps(decision.to_json())))
    assert back == decision
    assert type(back) is type(decision)


@pytest.mark.parametrize(
    "data",
    [
        {"type": "Unheard"},
        {"position": 1},
        {"type": "VersionPublished"},
        {"type": "VersionPublished", "version": 1, "extra": 2},
        {"type": "GroupFinished", "position": 0, "attempt": 0, "oldest_version": 0, "tokens": 1}
        | {"verdict": "perhaps"},
    ],
)
def test_malformed_event_is_refused(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        event_from_json(data)


def test_settings_survive_json() -> None:
    made = settings(max_age=8, in_flight_batches=2, on_age_limit=OnAgeLimit.EXPIRE, max_steps=5)
    assert SchedulerSettings.from_json(json.loads(json.dumps(made.to_json()))) == made
