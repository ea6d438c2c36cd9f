# SPDX-License-Identifier: Apache-2.0
"""Admitted groups: those that generate and those that are ready, counted by version and target."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

from rlrun.interfaces import ReadyGroup


@dataclass(slots=True)
class Running:
    """A group that generates.

    Attributes:
        attempt: Which attempt of its prompt.
        version: Weight version when it was admitted; its oldest token is at least that young.
        target_step: The step it was admitted for, if the policy assigns one.
        may_expire: Whether it may be cancelled where a step would have to wait for it.
        tokens: What progress reports said so far.
    """

    attempt: int
    version: int
    target_step: int | None
    may_expire: bool
    tokens: int = 0


class Pool:
    """Running and ready groups by position.

    ``running`` is in order of admission, so its versions never fall, and the counts of running
    groups by version have their keys in ascending order; ``ready`` is in order of finishing.

    Attributes:
        excess: How many of the running groups that ``require_end`` named must end before a step can
            begin; 0 if no step is known to have to wait.
    """

    __slots__ = (
        "_open_target",
        "_waited_version",
        "assigned",
        "excess",
        "expirable_by_version",
        "ready",
        "ready_by_target",
        "ready_by_version",
        "running",
        "running_by_version",
    )

    def __init__(self) -> None:
        """Starts empty."""
        self.running: dict[int, Running] = {}
        self.ready: dict[int, ReadyGroup] = {}
        self.running_by_version: dict[int, int] = {}
        self.expirable_by_version: dict[int, int] = {}
        self.ready_by_version: dict[int, int] = {}
        self.assigned: dict[int, int] = {}
        self.ready_by_target: dict[int, int] = {}
        self.excess = 0
        self._waited_version = -1
        # No target below it that anybody asks for has an open place.
        self._open_target = 0

    @property
    def firm_by_version(self) -> Mapping[int, int]:
        """Running groups that may not expire, by version in ascending order."""
        expirable = self.expirable_by_version
        if not expirable:
            return self.running_by_version
        return {v: n - expirable.get(v, 0) for v, n in self.running_by_version.items()}

    @property
    def outstanding(self) -> int:
        """Groups that generate or are ready."""
        return len(self.running) + len(self.ready)

    def start(self, position: int, running: Running) -> None:
        """A group was admitted."""
        self.running[position] = running
        counts, version = self.running_by_version, running.version
        counts[version] = counts.get(version, 0) + 1
        if running.may_expire:
            _change(self.expirable_by_version, version, 1)
        elif self.excess and version <= self._waited_version:
            self.excess += 1
        if running.target_step is not None:
            _change(self.assigned, running.target_step, 1)

    def stop(self, position: int, *, finished: bool = False) -> Running:
        """A group no longer generates.

        Args:
            position: Its place in the stream.
            finished: It is ready instead, and keeps its place in its target.
        """
        running = self.running.pop(position)
        counts, version = self.running_by_version, running.version
        if counts[version] > 1:
            counts[version] -= 1
        else:
            del counts[version]
        if running.may_expire:
            _change(self.expirable_by_version, version, -1)
        elif self.excess and version <= self._waited_version:
            self.excess -= 1
        if running.target_step is not None and not finished:
            self._leave_target(running.target_step, 1)
        return running

    def require_end(self, version: int, excess: int) -> None:
        """A step has to wait until ``excess`` of some running groups have ended.

        They are counted here as groups start and stop, so that no event needs to look at them all.

        Args:
            version: Groups of this version or older are counted, except those that may expire.
            excess: How many of them are too many; at least 1.
        """
        self._waited_version, self.excess = version, excess

    def put(self, group: ReadyGroup, *, finished: bool = False) -> None:
        """A group is ready.

        Args:
            group: The group.
            finished: It generated until now, and has its place in its target.
        """
        self.ready[group.position] = group
        counts, version = self.ready_by_version, group.oldest_version
        counts[version] = counts.get(version, 0) + 1
        if group.target_step is not None:
            _change(self.ready_by_target, group.target_step, 1)
            if not finished:
                _change(self.assigned, group.target_step, 1)

    def take(self, groups: Sequence[ReadyGroup]) -> None:
        """Groups are no longer ready."""
        for version, count in Counter(map(attrgetter("oldest_version"), groups)).items():
            _change(self.ready_by_version, version, -count)
        for target, count in Counter(map(attrgetter("target_step"), groups)).items():
            if target is not None:
                self._leave_target(target, count)
                _change(self.ready_by_target, target, -count)
        for group in groups:
            del self.ready[group.position]

    def sort_ready(self) -> None:
        """Puts the ready groups in the order in which they finished, after some were put back."""
        finished = sorted(self.ready.values(), key=attrgetter("finish_order"))
        self.ready = {group.position: group for group in finished}

    def overdue(self, oldest_legal: int) -> list[int]:
        """Ready positions whose oldest token is older than a version."""
        if min(self.ready_by_version, default=oldest_legal) >= oldest_legal:
            return []
        return [p for p, group in self.ready.items() if group.oldest_version < oldest_legal]

    def open_target(self, first: int, size: int) -> int:
        """The earliest step from ``first`` on that has fewer than ``size`` groups."""
        first = max(first, self._open_target)
        while self.assigned.get(first, 0) >= size:
            first += 1
        self._open_target = first
        return first

    def pull_forward(self, step: int, size: int) -> None:
        """Fills a step from later ones, lowest target and position first."""
        missing = size - self.assigned.get(step, 0)
        # Asked at every event at the end of the data, and then mostly in vain.
        if missing <= 0 or max(self.assigned, default=step) <= step:
            return
        later = ((target, position) for target, position in self._targets() if target > step)
        for target, position in heapq.nsmallest(missing, later):
            self._retarget(position, target, step)

    def _leave_target(self, target: int, groups: int) -> None:
        _change(self.assigned, target, -groups)
        self._open_target = min(self._open_target, target)

    def _retarget(self, position: int, old: int, new: int) -> None:
        self._leave_target(old, 1)
        _change(self.assigned, new, 1)
        if position in self.running:
            self.running[position].target_step = new
            return
        _change(self.ready_by_target, old, -1)
        _change(self.ready_by_target, new, 1)
        self.ready[position] = self.ready[position]._replace(target_step=new)

    def _targets(self) -> Iterator[tuple[int, int]]:
        for position, running in self.running.items():
            if running.target_step is not None:
                yield running.target_step, position
        for position, group in self.ready.items():
            if group.target_step is not None:
                yield group.target_step, position

    def state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "running": [
                [position, r.attempt, r.version, r.target_step, r.may_expire, r.tokens]
                for position, r in self.running.items()
            ],
            "ready": [group_state(group) for group in self.ready.values()],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """Inverse of ``state``."""
        pool = cls()
        for position, *fields in state["running"]:
            pool.start(position, Running(*fields))
        for group in state["ready"]:
            pool.put(restore_group(group))
        return pool


def group_state(group: ReadyGroup) -> list[int | None]:
    """JSON-able state of a finished group."""
    position, oldest, admitted, order, target, attempt, tokens = group
    return [position, attempt, oldest, admitted, order, target, tokens]


def restore_group(state: Sequence[Any]) -> ReadyGroup:
    """Inverse of ``group_state``."""
    position, attempt, oldest, admitted, order, target, tokens = state
    return ReadyGroup(position, oldest, admitted, order, target, attempt, tokens)


def _change(counts: dict[int, int], key: int, by: int) -> None:
    """Adds to a count; keys with a count of 0 are not kept."""
    count = counts.get(key, 0) + by
    if count:
        counts[key] = count
    else:
        del counts[key]
