# SPDX-License-Identifier: Apache-2.0
"""What happened: the inputs of the scheduler, as frozen records with a JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from rlrun.scheduler.settings import SchedulerSettings


class Verdict(StrEnum):
    """What is to become of a group that finished generating."""

    KEEP = "keep"
    """It goes to the buffer and will be trained."""
    NO_SIGNAL = "no_signal"
    """Dynamic sampling drops it: its rewards carry no signal. Its place is refilled."""
    FILTERED = "filtered"
    """Another filter drops the whole group. Its place is refilled."""


class Outcome(StrEnum):
    """How a prompt of an epoch ended; exactly one for each."""

    TRAINED = "trained"
    NO_SIGNAL = "no_signal"
    FAILED = "failed"
    FILTERED = "filtered"


class TokenCategory(StrEnum):
    """Where a token of a training rollout is; each is in one category, the first that applies."""

    ERRORED = "errored"
    CANCELLED = "cancelled"
    SURPLUS = "surplus"
    STALE = "stale"
    FILTERED = "filtered"
    ZERO_SIGNAL = "zero_signal"
    TRAINED = "trained"
    LOST = "lost"
    BUFFERED = "buffered"
    IN_FLIGHT = "in_flight"


@dataclass(frozen=True, slots=True)
class Event:
    """Base of the events. An attempt of a prompt is named by (position, attempt).

    Wherever an event says ``tokens``, it means all tokens sampled in that attempt so far.
    """

    def to_json(self) -> dict[str, Any]:
        """JSON-able form, with the class name under "type"."""
        return {"type": type(self).__name__, **asdict(self)}

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the event from its JSON fields (without "type")."""
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Started(Event):
    """A new run begins, at weight version 0; made by ``Scheduler.started_event``."""

    settings: SchedulerSettings
    batching: str

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the event from its JSON fields."""
        return cls(**{**fields, "settings": SchedulerSettings.from_json(fields["settings"])})


@dataclass(frozen=True, slots=True)
class Restored(Event):
    """A process goes on from a checkpoint; made by ``Scheduler.restored_event``.

    What was in flight is generated again under the same attempt, a batch whose training did not
    end is ready again, and a pause, a stop or an end is over.

    Attributes:
        settings: May differ from those of the checkpoint, as in ``max_steps``.
        batching: Identity of the batching policy.
        version: Weight version of the checkpoint, which is the number of completed steps.
        lost_tokens: Generated before the crash and not in the checkpoint.
    """

    settings: SchedulerSettings
    batching: str
    version: int
    lost_tokens: int

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the event from its JSON fields."""
        return cls(**{**fields, "settings": SchedulerSettings.from_json(fields["settings"])})


@dataclass(frozen=True, slots=True)
class TokensGenerated(Event):
    """Progress of a running attempt; optional, it only makes the ledger finer."""

    position: int
    attempt: int
    tokens: int


@dataclass(frozen=True, slots=True)
class GroupFinished(Event):
    """A trajectory group is complete and scored.

    Attributes:
        position: Place in the prompt stream.
        attempt: As in the Admit decision.
        oldest_version: Weight version of its oldest token; None if nothing was sampled.
        tokens: Sampled tokens over all its trajectories.
        verdict: What is to become of it.
    """

    position: int
    attempt: int
    oldest_version: int | None
    tokens: int
    verdict: Verdict = Verdict.KEEP

    def to_json(self) -> dict[str, Any]:
        """Written out: asdict copies every value, for every group of the run."""
        return {
            "type": "GroupFinished",
            "position": self.position,
            "attempt": self.attempt,
            "oldest_version": self.oldest_version,
            "tokens": self.tokens,
            "verdict": self.verdict,
        }

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the event from its JSON fields."""
        return cls(**{**fields, "verdict": Verdict(fields["verdict"])})


@dataclass(frozen=True, slots=True)
class GroupFailed(Event):
    """A group has no usable result: an error, or its deadline passed. It counts as one failure."""

    position: int
    attempt: int
    error: str
    tokens: int


@dataclass(frozen=True, slots=True)
class GroupCancelled(Event):
    """A cancelled attempt ended; what it had sampled goes into the ledger.

    If the attempt was still running (the driver cancelled it by itself), its prompt is generated
    again.
    """

    position: int
    attempt: int
    tokens: int


@dataclass(frozen=True, slots=True)
class EnginesLost(Event):
    """Engines died with these groups. One failure in all, and not the fault of the prompts."""

    positions: tuple[int, ...]
    error: str

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the event from its JSON fields."""
        return cls(tuple(fields["positions"]), fields["error"])


@dataclass(frozen=True, slots=True)
class StepTrained(Event):
    """The batch of a step went through the learner; the new weights are not yet in use.

    Attributes:
        step: As in the Train decision.
        outcomes: For every position of the batch: trained, no_signal or filtered.
        tokens: Where the batch's tokens went: trained, stale, filtered, zero_signal, surplus or
            errored; the sum is the number of tokens that its groups finished with.
    """

    step: int
    outcomes: Mapping[int, Outcome]
    tokens: Mapping[TokenCategory, int]

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the event from its JSON fields (object keys are strings there)."""
        return cls(
            fields["step"],
            {int(position): Outcome(name) for position, name in fields["outcomes"].items()},
            {TokenCategory(name): count for name, count in fields["tokens"].items()},
        )


@dataclass(frozen=True, slots=True)
class VersionPublished(Event):
    """The refit is over: groups admitted from now on sample from this weight version."""

    version: int


@dataclass(frozen=True, slots=True)
class Paused(Event):
    """Nothing may be admitted and no step may begin (validation wants one weight version)."""


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """The pause is over."""


@dataclass(frozen=True, slots=True)
class Stop(Event):
    """A signal or the time limit asks for an end.

    Attributes:
        reason: For the Finish decision.
        finish_step: Whether a step that is still being generated is completed first; a step in
            training always is.
    """

    reason: str
    finish_step: bool = False


EVENTS: dict[str, type[Event]] = {
    cls.__name__: cls
    for cls in (
        Started,
        Restored,
        TokensGenerated,
        GroupFinished,
        GroupFailed,
        GroupCancelled,
        EnginesLost,
        StepTrained,
        VersionPublished,
        Paused,
        Resumed,
        Stop,
    )
}
"""All events by their "type"."""


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Reads what ``Event.to_json`` wrote.

    Raises:
        KeyError, TypeError, ValueError: The type is unknown or a field is missing or wrong.
    """
    fields = dict(data)
    return EVENTS[fields.pop("type")].decode(fields)
