# SPDX-License-Identifier: Apache-2.0
"""What is to be done: the outputs of the scheduler, as records with a JSON form.

Nobody changes them. They are not frozen, since a frozen record takes four times as long to make and
one is made for every group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self


class CancelReason(StrEnum):
    """Why a group is cancelled."""

    EXPIRED = "expired"
    """It would pass, or has passed, the age bound; its prompt is generated again."""
    FINISHED = "finished"
    """The run ends; its prompt is generated again if the run is resumed."""


@dataclass(slots=True)
class Decision:
    """Base of the decisions."""

    def to_json(self) -> dict[str, Any]:
        """JSON-able form, with the class name under "type"."""
        return {"type": type(self).__name__, **asdict(self)}

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the decision from its JSON fields (without "type")."""
        return cls(**fields)


@dataclass(slots=True)
class Admit(Decision):
    """Start generating this prompt.

    Attributes:
        position: Place in the prompt stream.
        attempt: From 0; part of the seeds, so that a new attempt samples anew.
        target_step: The step it is generated for, if the batching policy assigns one.
    """

    position: int
    attempt: int
    target_step: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Written out: asdict copies every value, for every group of the run."""
        return {
            "type": "Admit",
            "position": self.position,
            "attempt": self.attempt,
            "target_step": self.target_step,
        }


@dataclass(slots=True)
class Train(Decision):
    """Train this step on these groups.

    Attributes:
        step: From 1; its weights are version step - 1.
        positions: The batch, in stream order.
        oldest_versions: Version of the oldest token of each group, in the same order.
        mask_before: Tokens of versions below this one get no loss; None if there are none.
    """

    step: int
    positions: tuple[int, ...]
    oldest_versions: tuple[int, ...]
    mask_before: int | None = None

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the decision from its JSON fields."""
        lists = {name: tuple(fields[name]) for name in ("positions", "oldest_versions")}
        return cls(**{**fields, **lists})

    @property
    def ages(self) -> tuple[int, ...]:
        """Age in steps of the oldest token of each group that gets a loss."""
        floor = 0 if self.mask_before is None else self.mask_before
        return tuple(self.step - 1 - max(version, floor) for version in self.oldest_versions)

    @property
    def age_mean(self) -> float:
        """Mean of ``ages``."""
        return sum(self.ages) / len(self.ages)

    @property
    def age_max(self) -> int:
        """Maximum of ``ages``."""
        return max(self.ages)


@dataclass(slots=True)
class Cancel(Decision):
    """Stop generating this attempt, or drop its finished group from the buffer.

    The driver answers with one GroupCancelled when a running attempt has ended; a GroupFinished or
    GroupFailed that was already on its way serves as well.
    """

    position: int
    attempt: int
    reason: CancelReason

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the decision from its JSON fields."""
        return cls(**{**fields, "reason": CancelReason(fields["reason"])})


@dataclass(slots=True)
class Hold(Decision):
    """The step waits for running groups that would pass the age bound; said once for a step.

    Attributes:
        step: The step that could begin otherwise.
        waiting: Positions of those groups, the longest admitted first.
    """

    step: int
    waiting: tuple[int, ...]

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        """Makes the decision from its JSON fields."""
        return cls(fields["step"], tuple(fields["waiting"]))


@dataclass(slots=True)
class Fail(Decision):
    """End the run with an error.

    Attributes:
        reason: The limit that was passed, with its value and setting.
        error: The original error, "" if there is none.
    """

    reason: str
    error: str


@dataclass(slots=True)
class Finish(Decision):
    """End the run: "max_steps", "data_end" or the reason of the Stop event."""

    reason: str


DECISIONS: dict[str, type[Decision]] = {
    cls.__name__: cls for cls in (Admit, Train, Cancel, Hold, Fail, Finish)
}
"""All decisions by their "type"."""


def decision_from_json(data: Mapping[str, Any]) -> Decision:
    """Reads what ``Decision.to_json`` wrote.

    Raises:
        KeyError, TypeError, ValueError: The type is unknown or a field is missing or wrong.
    """
    fields = dict(data)
    return DECISIONS[fields.pop("type")].decode(fields)
