# SPDX-License-Identifier: Apache-2.0
"""What the scheduler is told once: sizes, the age bound, limits on failures and where data ends."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self


class OnAgeLimit(StrEnum):
    """What happens when going on would leave a running group behind its age bound."""

    HOLD = "hold"
    """The trainer waits for it: nothing is wasted, a heavy tail costs time."""
    MASK = "mask"
    """Go on; tokens older than the bound get no loss when the group is trained."""
    EXPIRE = "expire"
    """Cancel it and put its prompt back in front of the stream, max_expiries times at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Everything that the scheduler's decisions depend on, besides events and the policy.

    Attributes:
        prompts_per_step: Trajectory groups in a batch (P); at least 1.
        max_age: Hard bound on the age of a trained token in steps (A); 0 is on-policy.
        in_flight_batches: At most this many batches generate at once (K); 1 .. max(1, max_age).
        on_age_limit: What happens to a running group that would pass the bound.
        max_expiries: Expiries of a prompt after which it is held for instead.
        max_generation_failures: Failures in a row, over all groups, that are tolerated; one more
            ends the run.
        max_attempts: Failed attempts after which a prompt is given up (outcome failed).
        max_gen_batches: Groups generated for one step without filling it, in batches, before the
            run fails (a bound on dynamic sampling), or None for no bound.
        rows_per_epoch: Prompts of an epoch; epoch = position // rows_per_epoch.
        total_positions: Length of the stream over all epochs, or None for no end.
        max_steps: Last step of the run, or None for no limit.
    """

    prompts_per_step: int
    max_age: int
    in_flight_batches: int
    on_age_limit: OnAgeLimit
    max_expiries: int
    max_generation_failures: int
    max_attempts: int
    max_gen_batches: int | None
    rows_per_epoch: int
    total_positions: int | None
    max_steps: int | None

    def __post_init__(self) -> None:
        """Refuses values that no rule is defined for.

        Raises:
            ValueError: A value is outside its range.
        """
        lowest = {
            "prompts_per_step": (self.prompts_per_step, 1),
            "max_age": (self.max_age, 0),
            "in_flight_batches": (self.in_flight_batches, 1),
            "max_expiries": (self.max_expiries, 0),
            "max_generation_failures": (self.max_generation_failures, 0),
            "max_attempts": (self.max_attempts, 1),
            "max_gen_batches": (self.max_gen_batches, 1),
            "rows_per_epoch": (self.rows_per_epoch, 1),
            "total_positions": (self.total_positions, 0),
            "max_steps": (self.max_steps, 1),
        }
        for name, (value, low) in lowest.items():
            if value is not None and value < low:
                raise ValueError(f"{name}={value} is below {low}")
        if self.in_flight_batches > max(1, self.max_age):
            raise ValueError(
                f"in_flight_batches={self.in_flight_batches} is above "
                f"max(1, max_age)={max(1, self.max_age)}"
            )

    @property
    def max_in_flight(self) -> int:
        """Groups that may generate at once: K * P."""
        return self.in_flight_batches * self.prompts_per_step

    @property
    def max_outstanding(self) -> int:
        """Groups admitted and not yet trained and refitted: min(K, A) * P + P."""
        return (min(self.in_flight_batches, self.max_age) + 1) * self.prompts_per_step

    def to_json(self) -> dict[str, Any]:
        """JSON-able fields; the inverse of ``from_json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Reads what ``to_json`` wrote.

        Raises:
            TypeError, ValueError: A field is missing, unknown or out of range.
        """
        return cls(**{**data, "on_age_limit": OnAgeLimit(data.get("on_age_limit", ""))})
