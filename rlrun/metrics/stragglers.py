# SPDX-License-Identifier: Apache-2.0
"""Which groups of a batch set the time at which its step could begin, and why they took so long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

MOST = 3
"""Groups that are recorded per step."""

_NOTABLE = 0.05
"""Share of its duration that a cause must explain to be named."""


class Cause(StrEnum):
    """Why a group ended later than the others of its batch: what explains the most seconds."""

    LONG_ANSWER = "long_answer"
    """Its longest trajectory has more tokens."""
    MORE_TURNS = "more_turns"
    """Likewise, and it took more turns."""
    ENVIRONMENT = "environment"
    """Its environment took longer."""
    RETRY = "retry"
    """An earlier attempt at it had failed or expired."""
    ADMITTED_LATE = "admitted_late"
    """It began later."""
    SLOW_GENERATION = "slow_generation"
    """It had fewer tokens per second."""
    NONE = "none"
    """It took as long as the others."""


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """An attempt at a group, from its admission to its end.

    Attributes:
        position: In the prompt stream.
        attempt: From 0.
        prompt_id: Identity of the prompt.
        environment: Name of its environment or agent.
        start: In seconds of a clock that ascends.
        end: Likewise.
        outcome: "finished", "no_signal", "failed" or "cancelled".
        tokens: Sampled tokens over all trajectories.
        longest: Sampled tokens of the longest one.
        turns: Of the one that took most turns.
        env_s: Seconds of the one whose environment took longest.
    """

    position: int
    attempt: int
    prompt_id: str
    environment: str
    start: float
    end: float
    outcome: str
    tokens: int
    longest: int = 0
    turns: int = 0
    env_s: float = 0.0

    @property
    def seconds(self) -> float:
        """From admission to end."""
        return self.end - self.start

    @property
    def generating(self) -> float:
        """Seconds outside of the environment, of its slowest trajectory about."""
        return max(0.0, self.seconds - self.env_s)

    def to_json(self, origin: float) -> dict[str, Any]:
        """JSON-able fields; times count from ``origin``."""
        # Written out: asdict copies every value, for every group of the run.
        return {
            "position": self.position,
            "attempt": self.attempt,
            "prompt_id": self.prompt_id,
            "environment": self.environment,
            "start": round(self.start - origin, 3),
            "end": round(self.end - origin, 3),
            "outcome": self.outcome,
            "tokens": self.tokens,
            "longest": self.longest,
            "turns": self.turns,
            "env_s": round(self.env_s, 3),
        }


@dataclass(frozen=True, slots=True)
class Straggler:
    """A group that a step waited for.

    Attributes:
        group: The group.
        cause: What made it late.
        held_trainer_s: How long the trainer had waited when it ended; 0 if it did not wait for it.
    """

    group: GroupSpan
    cause: Cause
    held_trainer_s: float

    def to_json(self, origin: float) -> dict[str, Any]:
        """JSON-able fields; times count from ``origin``."""
        fields = self.group.to_json(origin)
        return fields | {"cause": self.cause.value, "held_trainer_s": round(self.held_trainer_s, 3)}


def stragglers(batch: Sequence[GroupSpan], waited_since: float) -> list[Straggler]:
    """The groups of a batch that ended last, the last one first.

    Groups of a lockstep generator end together; of those the longest answers come first, which
    are what the call lasted for.

    Args:
        batch: The groups that the step trains.
        waited_since: When the trainer began to wait for them.
    """
    last = sorted(batch, key=lambda g: (-g.end, -g.longest, g.position))[:MOST]
    return [Straggler(g, cause_of(g, batch), max(0.0, g.end - waited_since)) for g in last]


def cause_of(group: GroupSpan, batch: Sequence[GroupSpan]) -> Cause:
    """What explains most of the seconds by which a group ended after a typical one of its batch."""
    start, env_s = median(g.start for g in batch), median(g.env_s for g in batch)
    longest, turns = median(g.longest for g in batch), median(g.turns for g in batch)
    per_token = group.generating / group.longest if group.longest else 0.0
    typical = median(g.generating / g.longest if g.longest else 0.0 for g in batch)
    late = Cause.RETRY if group.attempt else Cause.ADMITTED_LATE
    long = Cause.MORE_TURNS if group.turns > turns else Cause.LONG_ANSWER
    together = all(g.start == group.start and g.end == group.end for g in batch)
    # Of a call in lockstep every group has the call's seconds: only lengths tell them apart.
    slow = 0.0 if together else (per_token - typical) * group.longest
    seconds = {
        late: group.start - start,
        Cause.ENVIRONMENT: group.env_s - env_s,
        long: (group.longest - longest) * (per_token if together else min(per_token, typical)),
        Cause.SLOW_GENERATION: slow,
    }
    cause = max(seconds, key=lambda name: seconds[name])
    return cause if seconds[cause] > _NOTABLE * max(group.seconds, 1e-9) else Cause.NONE
