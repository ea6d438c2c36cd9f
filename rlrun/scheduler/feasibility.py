# SPDX-License-Identifier: Apache-2.0
"""Which batches keep the age bound: pure functions over counts of groups by version.

With P groups in a step, age bound A and training version v, what is left after the step can still
be trained in time if and only if for every version x at most P * (x + A - v) of the groups left
have a token of version x or older: those must be trained by the step whose training version is
x + A, and x + A - v steps remain until then (Hall's condition for deadlines).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from rlrun.interfaces import ReadyGroup


def first_violation(
    running: Mapping[int, int], prompts_per_step: int, max_age: int, version: int
) -> tuple[int, int] | None:
    """The lowest version x of which too many groups generate, and how many too many; or None.

    Training the oldest ready groups meets every deadline that ready groups can meet, so whether any
    batch is feasible depends on the running ones alone.

    Args:
        running: Groups that generate by the version they were admitted at, in ascending order.
        prompts_per_step: P.
        max_age: A.
        version: Training version v of the step that could begin.
    """
    count = 0
    for x, groups in running.items():
        count += groups
        excess = count - prompts_per_step * (x + max_age - version)
        if excess > 0:
            return x, excess
    return None


def to_expire(
    by_version: Mapping[int, int],
    running: Iterable[tuple[int, bool]],
    prompts_per_step: int,
    max_age: int,
    version: int,
) -> list[int]:
    """The fewest running groups, oldest first, whose end makes a batch feasible.

    The groups that may not expire must be feasible by themselves (``first_violation``).

    Args:
        by_version: Groups that generate by the version they were admitted at, in ascending order.
        running: (position, whether it may expire) of the same groups in the same order; read only
            as far as needed.
        prompts_per_step: P.
        max_age: A.
        version: Training version v of the step that could begin.

    Returns:
        Positions.
    """
    groups = iter(running)
    chosen: list[int] = []
    candidates: list[int] = []
    unread = used = kept = 0
    for x, count in by_version.items():
        kept += count
        unread += count
        excess = kept - prompts_per_step * (x + max_age - version)
        if excess > 0:
            part = itertools.islice(groups, unread)
            candidates += [position for position, may_expire in part if may_expire]
            unread = 0
            assert excess <= len(candidates) - used
            chosen += candidates[used : used + excess]
            used += excess
            kept -= excess
    return chosen


def needs(
    running: Mapping[int, int],
    ready: Mapping[int, int],
    size: int,
    prompts_per_step: int,
    max_age: int,
    version: int,
) -> list[tuple[int, int]]:
    """How many groups of version x or older a batch of ``size`` must hold: pairs (x, number).

    Numbers that no batch could reach are cut to what can be reached: by masking, or by a bound
    that was lowered on resume, groups may already be past saving.
    """
    found = []
    left = reachable = 0
    for x in sorted({*running, *ready}):
        left += running.get(x, 0) + ready.get(x, 0)
        reachable += ready.get(x, 0)
        need = min(left - prompts_per_step * (x + max_age - version), reachable, size)
        if need > 0:
            found.append((x, need))
    return found


def select(
    ready: Sequence[ReadyGroup],
    ranked: Sequence[ReadyGroup],
    required: Sequence[tuple[int, int]],
    size: int,
) -> list[ReadyGroup]:
    """The batch: groups in ranked order while that is feasible, then the oldest.

    Args:
        ready: All ready groups, in the order of finishing.
        ranked: The same, as the batching policy ranks them; at least ``size``.
        required: From ``needs``.
        size: Groups of the batch.
    """
    versions = Counter(map(attrgetter("oldest_version"), ranked[:size]))
    if all(sum(n for v, n in versions.items() if v <= x) >= need for x, need in required):
        return list(ranked[:size])
    remaining = [need for _, need in required]
    chosen: list[ReadyGroup] = []
    for group in ranked[:size]:
        after = [
            need - (group.oldest_version <= x)
            for (x, _), need in zip(required, remaining, strict=True)
        ]
        if after and max(after) > size - len(chosen) - 1:
            break
        chosen.append(group)
        remaining = after
    if len(chosen) < size:
        taken = {group.position for group in chosen}
        rest = [group for group in ready if group.position not in taken]
        rest.sort(key=attrgetter("oldest_version"))
        chosen += rest[: size - len(chosen)]
    return chosen
