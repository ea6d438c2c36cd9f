# SPDX-License-Identifier: Apache-2.0
"""How an attempt at a group ended, in the terms of the scheduler and of the timeline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from rlrun.console.counted import counted
from rlrun.metrics.stragglers import GroupSpan
from rlrun.scheduler.decisions import Admit
from rlrun.scheduler.events import GroupCancelled, GroupFailed, GroupFinished, Verdict
from rlrun.types import Prompt, TrajectoryGroup

log = logging.getLogger(__name__)

GroupEnd = GroupFinished | GroupFailed | GroupCancelled
"""How an attempt at a group ended."""

_OUTCOMES: Mapping[type[GroupEnd], str] = {
    GroupFinished: "finished",
    GroupFailed: "failed",
    GroupCancelled: "cancelled",
}


def judge(
    admit: Admit,
    group: TrajectoryGroup,
    scored_needed: int,
    lacks_signal: Callable[[TrajectoryGroup], bool] | None,
) -> GroupFinished | GroupFailed:
    """Whether a group that was rolled out is of use.

    Args:
        admit: What it was rolled out for.
        group: The group.
        scored_needed: Samples that must have a reward for the group to be of use.
        lacks_signal: Which groups are not to be trained; None for all that have what is needed.
    """
    failures = [t.failure for t in group.trajectories if t.failure is not None]
    scored = sum(t.failure is None and not t.flagged for t in group.trajectories)
    if failures:
        log.warning(
            "prompt %s: %d of %d samples failed, the first by %s: %s",
            group.prompt.prompt_id,
            len(failures),
            len(group.trajectories),
            failures[0].kind,
            failures[0].message,
        )
    if scored < scored_needed:
        flagged = sum(t.flagged for t in group.trajectories)
        error = f"the environment flagged {flagged} of {counted(len(group.trajectories), 'sample')}"
        if failures:
            error = f"{failures[0].kind}: {failures[0].message}"
        return GroupFailed(admit.position, admit.attempt, error, group.num_sampled)
    verdict = Verdict.KEEP
    if lacks_signal is not None and lacks_signal(group):
        verdict = Verdict.NO_SIGNAL
    return GroupFinished(
        admit.position, admit.attempt, group.oldest_version, group.num_sampled, verdict
    )


def span_of(
    end: GroupEnd,
    group: TrajectoryGroup | None,
    prompt: Prompt,
    environment: str,
    started: float,
    ended: float,
) -> GroupSpan:
    """The attempt as the timeline has it.

    Args:
        end: How it ended.
        group: What it made, if it finished.
        prompt: What it was for.
        environment: Name of its environment or agent.
        started: By the clock of the timeline.
        ended: Likewise.
    """
    outcome = _OUTCOMES[type(end)]
    if isinstance(end, GroupFinished) and end.verdict is Verdict.NO_SIGNAL:
        outcome = "no_signal"
    trajectories = () if group is None else group.trajectories
    return GroupSpan(
        position=end.position,
        attempt=end.attempt,
        prompt_id=prompt.prompt_id,
        environment=environment,
        start=started,
        end=ended,
        outcome=outcome,
        tokens=end.tokens,
        longest=max((t.num_sampled for t in trajectories), default=0),
        turns=max((t.turns for t in trajectories), default=0),
        env_s=0.0 if group is None else group.env_seconds,
    )


def shares(tokens: int, groups: int) -> tuple[int, ...]:
    """What a call sampled, by group: told apart only where it has one; the sum is what counts."""
    return (tokens, *(0 for _ in range(groups - 1)))


def agent_name(payload: Mapping[str, object]) -> str:
    """What a row calls its agent; "" if it names none."""
    agent = payload.get("agent_ref")
    name = agent.get("name") if isinstance(agent, Mapping) else agent
    return name if isinstance(name, str) else ""
