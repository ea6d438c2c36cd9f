# SPDX-License-Identifier: Apache-2.0
"""What is known of each agent: failures by kind, what it told last, and whether it is paused.

A circuit breaker per agent: after so many failed episodes in a row it is open, and the agent takes
no episodes for a while. One more failure after that opens it again at once; a success closes it.
Pure; time is given.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.console.counted import counted
from rlrun.types import Failure, FailureKind

log = logging.getLogger(__name__)

FAULTS = (FailureKind.ENV_DOWN, FailureKind.ENV_ERROR, FailureKind.TIMEOUT)
"""What counts against an agent; a lost engine, a wrong reward and an episode that was called off
are not about its being there."""


@dataclass(slots=True)
class AgentState:
    """One agent.

    Attributes:
        name: Of the agent.
        failures: Episodes without a reward, by kind, since the run began.
        passed_over: Prompts that were not rolled out because it was paused.
        in_a_row: Faults since the last success.
        open_until: Until when it is paused, by the caller's clock; None if it is not.
        cause: Text of the first fault in a row.
        seconds: Of finished episodes since metrics were last asked for.
        turns: Their turns.
    """

    name: str
    failures: Counter[FailureKind] = field(default_factory=Counter)
    passed_over: int = 0
    in_a_row: int = 0
    open_until: float | None = None
    cause: str = ""
    seconds: float = 0.0
    turns: int = 0


class Agents:
    """All agents that were asked for so far.

    Args:
        max_failures: Faults in a row that open an agent's breaker.
        pause_s: For how long.
    """

    def __init__(self, max_failures: int, pause_s: float) -> None:
        self._max_failures, self._pause_s = max_failures, pause_s
        self._agents: dict[str, AgentState] = {}
        self._told: set[str] = set()

    def __getitem__(self, name: str) -> AgentState:
        """The state of an agent."""
        return self._agents.setdefault(name, AgentState(name))

    def paused(self, name: str, now: float) -> str | None:
        """Why the agent takes no episodes now, or None."""
        agent = self[name]
        if agent.open_until is None:
            return None
        if now >= agent.open_until:
            agent.open_until = None
            log.warning("agent %s is tried again", name)
            return None
        return (
            f"agent {name} is paused for another {agent.open_until - now:.0f} s after "
            f"{counted(agent.in_a_row, 'failure')} in a row, the first: {agent.cause}"
        )

    def succeeded(self, name: str, seconds: float, turns: int) -> None:
        """An episode came to a reward."""
        agent = self[name]
        if agent.in_a_row >= self._max_failures:
            log.warning("agent %s works again", name)
        agent.in_a_row, agent.open_until, agent.cause = 0, None, ""
        agent.seconds += seconds
        agent.turns += turns

    def failed(self, name: str, failure: Failure, now: float) -> None:
        """An episode came to none."""
        agent = self[name]
        agent.failures[failure.kind] += 1
        if failure.kind not in FAULTS:
            return
        agent.in_a_row += 1
        agent.cause = agent.cause or f"{failure.kind}: {failure.message}"
        is_paused = agent.open_until is not None and now < agent.open_until
        if agent.in_a_row >= self._max_failures and not is_paused:
            agent.open_until = now + self._pause_s
            log.warning(
                "agent %s is paused for %g s after %d failed episodes in a row, its prompts are "
                "passed over; the first failure: %s",
                name,
                self._pause_s,
                agent.in_a_row,
                agent.cause,
            )

    def all_paused(self, now: float) -> str | None:
        """The cause, if every agent that was asked so far is paused."""
        agents = self._agents.values()
        if not agents or any(
            agent.open_until is None or now >= agent.open_until for agent in agents
        ):
            return None
        return "; ".join(f"{agent.name}: {agent.cause}" for agent in agents)

    def notice_others(self, name: str, others: Iterable[str]) -> None:
        """Says once per agent which fields of its answers are no metrics."""
        others = sorted(others)
        if others and name not in self._told:
            self._told.add(name)
            log.warning(
                "agent %s tells of each episode what is no number and therefore no metric: %s",
                name,
                ", ".join(others),
            )

    def metrics(self, now: float) -> dict[str, float]:
        """Declared metrics; latencies are of what finished since the last call."""
        values: dict[str, float] = {}
        for name, agent in self._agents.items():
            stage = f"agent/{name}"
            for kind, count in sorted(agent.failures.items()):
                values[f"{stage}/failures/{kind.value}"] = float(count)
            values[f"{stage}/passed_over"] = float(agent.passed_over)
            paused = agent.open_until is not None and now < agent.open_until
            values[f"{stage}/paused"] = float(paused)
            if agent.turns:
                values[f"{stage}/turn_seconds"] = agent.seconds / agent.turns
            agent.seconds, agent.turns = 0.0, 0
        return values

    def state(self) -> dict[str, Any]:
        """What is counted since the run began; JSON values."""
        return {
            name: {
                "failures": {kind.value: count for kind, count in agent.failures.items()},
                "passed_over": agent.passed_over,
            }
            for name, agent in self._agents.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Counts on from what ``state`` gave."""
        for name, counts in state.items():
            agent = self[name]
            failures = counts["failures"].items()
            agent.failures = Counter({FailureKind(kind): count for kind, count in failures})
            agent.passed_over = counts["passed_over"]
